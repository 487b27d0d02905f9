{{- define "hami-plugin.base" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "hami-plugin.daemon" -}}
{{ .Values.devicePlugin.nameOverride | default (include "hami-plugin.base" .) }}
{{- end -}}

{{- define "hami-plugin.scheduler" -}}
{{ .Values.scheduler.nameOverride | default (printf "%s-scheduler" (include "hami-plugin.base" .)) }}
{{- end -}}

{{/* The image of the daemon, and of the scheduler where it has none of its own. */}}
{{- define "hami-plugin.image" -}}
{{- $own := .own -}}
{{- $plugin := .root.Values.devicePlugin.image -}}
{{ $own.repository | default $plugin.repository }}:{{ $own.tag | default $plugin.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "hami-plugin.vendors" -}}
nvidia amd ascend awsneuron biren cambricon enflame gaudi hygon iluvatar kunlun metax mthreads vastai
{{- end -}}

{{/* The DaemonSets: name and values of each. One, or one for each pool. */}}
{{- define "hami-plugin.daemons" -}}
{{- $name := include "hami-plugin.daemon" . -}}
{{- $base := omit .Values.devicePlugin "pools" -}}
{{- $daemons := list -}}
{{- range .Values.devicePlugin.pools -}}
{{- $plugin := mergeOverwrite (deepCopy $base) (omit . "name") -}}
{{- $daemons = append $daemons (dict "name" (printf "%s-%s" $name .name) "plugin" $plugin "pool" .name) -}}
{{- else -}}
{{- $daemons = append $daemons (dict "name" $name "plugin" $base) -}}
{{- end -}}
{{ toYaml $daemons }}
{{- end -}}

{{/* What a vendor's values say beyond the daemon's defaults, which HAMi's file may change. */}}
{{- define "hami-plugin.section" -}}
{{- $defaults := dict "enabled" "auto" -}}
{{- if eq .vendor "nvidia" -}}
{{- $cdi := dict "enabled" false "vendor" "k8s.device-plugin.nvidia.com" "class" "gpu" -}}
{{- $defaults = dict "enabled" "auto" "splitCount" 10 "memoryScaling" 1 "coreScaling" 1 "migStrategy" "none" "computeMode" "Default" "driverRoot" "/" "cdi" $cdi -}}
{{- end -}}
{{- $section := dict -}}
{{- range $key, $value := index .plugin .vendor | default dict -}}
{{- if ne (toJson $value) (index $defaults $key | toJson) -}}
{{- $section = set $section $key $value -}}
{{- end -}}
{{- end -}}
{{ toYaml $section }}
{{- end -}}

{{- define "hami-plugin.sections" -}}
{{- $sections := dict -}}
{{- range $vendor := splitList " " (include "hami-plugin.vendors" .) -}}
{{- with include "hami-plugin.section" (dict "vendor" $vendor "plugin" $) | fromYaml -}}
{{- $sections = set $sections $vendor . -}}
{{- end -}}
{{- end -}}
{{ dict "vendors" $sections | toYaml }}
{{- end -}}

{{/* The daemon's own file. Where our scheduler alone decides, what pods have is counted as it is; beside HAMi's, usage has
     the names of HAMi's monitor too, which its dashboards ask for. */}}
{{- define "hami-plugin.config" -}}
{{- $check := .config.overcommitCheck | default (ternary "exact" "" .alone) -}}
{{- $config := omit .config "overcommitCheck" -}}
{{- with $check -}}
{{- $config = set $config "overcommitCheck" . -}}
{{- end -}}
{{- if and (not .alone) (not (hasKey $config "hamiMetrics")) -}}
{{- $config = set $config "hamiMetrics" true -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* HAMi's file. What the values of NVIDIA's section say, it must not say too: they would outrank it. */}}
{{- define "hami-plugin.device-config" -}}
{{- $said := include "hami-plugin.section" (dict "vendor" "nvidia" "plugin" .plugin) | fromYaml -}}
{{- $twins := dict "splitCount" "deviceSplitCount" "memoryScaling" "deviceMemoryScaling" "coreScaling" "deviceCoreScaling" -}}
{{- range $ours, $hamis := $twins -}}
{{- if and (hasKey $said $ours) (hasKey ($.config.nvidia | default dict) $hamis) -}}
{{- fail (printf "devicePlugin.nvidia.%s and deviceConfig.nvidia.%s mean the same; set one of them" $ours $hamis) -}}
{{- end -}}
{{- end -}}
{{ toYaml .config }}
{{- end -}}

{{/* Names of resources that are ours: those that ship, and those that the configuration renames. */}}
{{- define "hami-plugin.resources" -}}
{{- $names := .Files.Get "files/resources.yaml" | fromYamlArray -}}
{{- $sections := values .Values.deviceConfig -}}
{{- range $vendor := splitList " " (include "hami-plugin.vendors" .) -}}
{{- $sections = append $sections (index $.Values.devicePlugin $vendor | default dict) -}}
{{- end -}}
{{- range $section := $sections -}}
{{- if kindIs "map" $section -}}
{{- range $key, $value := $section -}}
{{- if and (regexMatch "^resource[A-Za-z]*Name[A-Za-z]*$" $key) $value -}}
{{- $names = append $names $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ concat $names .Values.scheduler.extraResources | uniq | sortAlpha | toYaml }}
{{- end -}}

{{/* The highest version of kube-scheduler's configuration that a release of it knows; alpha versions are not used. */}}
{{- define "hami-plugin.scheduler-config-version" -}}
{{- $tag := include "hami-plugin.kube-scheduler-tag" . | trimPrefix "v" -}}
{{- $version := regexFind "^[0-9]+\\.[0-9]+\\.[0-9]+" $tag | default "1.30.0" -}}
{{- if .Values.scheduler.kubeScheduler.configVersion -}}
{{ .Values.scheduler.kubeScheduler.configVersion }}
{{- else if semverCompare ">=1.25.0" $version -}}
v1
{{- else if semverCompare ">=1.23.0" $version -}}
v1beta3
{{- else if semverCompare ">=1.22.0" $version -}}
v1beta2
{{- else -}}
v1beta1
{{- end -}}
{{- end -}}

{{- define "hami-plugin.kube-scheduler-tag" -}}
{{- $cluster := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version | trimPrefix "v" -}}
{{ .Values.scheduler.kubeScheduler.image.tag | default (printf "v%s" $cluster) }}
{{- end -}}

{{- define "hami-plugin.tls-secret" -}}
{{- if eq .Values.scheduler.tls.source "secret" -}}
{{ required "scheduler.tls.existingSecret: name the Secret with tls.crt, tls.key and ca.crt" .Values.scheduler.tls.existingSecret }}
{{- else -}}
{{ include "hami-plugin.scheduler" . }}-tls
{{- end -}}
{{- end -}}

{{/* Whether the API server can be told to ask about pods with our resources only. */}}
{{- define "hami-plugin.selective" -}}
{{- if semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{/* Whether a DaemonSet can start a node's next pod before it ends the present one. */}}
{{- define "hami-plugin.surges" -}}
{{- if semverCompare ">=1.22.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{/* Whether a daemon makes MIG instances, or leaves MIG mode, on all of its nodes or on some. */}}
{{- define "hami-plugin.cuts" -}}
{{- if or (eq (toString .nvidia.operatingMode) "mig") (eq (toString .nvidia.migMode) "disabled") }}yes{{ end -}}
{{- range .nodeConfig }}{{ if or (eq (toString .operatingmode) "mig") (eq (toString .migmode) "disabled") }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* The vendors whose devices a daemon offers to ResourceClaims, or may offer so, as a list. */}}
{{- define "hami-plugin.claimed" -}}
{{- $claimed := list -}}
{{- range $vendor := splitList " " (include "hami-plugin.vendors" .) -}}
{{- if has (dig $vendor "frontEnd" "" $ | toString) (list "dra" "auto") -}}
{{- $claimed = append $claimed $vendor -}}
{{- end -}}
{{- end -}}
{{ toYaml $claimed }}
{{- end -}}

{{/* Those of all daemons. */}}
{{- define "hami-plugin.all-claimed" -}}
{{- $claimed := list -}}
{{- range $daemon := include "hami-plugin.daemons" . | fromYamlArray -}}
{{- $claimed = concat $claimed (include "hami-plugin.claimed" $daemon.plugin | fromYamlArray) -}}
{{- end -}}
{{ $claimed | uniq | sortAlpha | toYaml }}
{{- end -}}

{{/* Whether a daemon writes conditions of its node. */}}
{{- define "hami-plugin.conditions" -}}
{{- range $daemon := include "hami-plugin.daemons" . | fromYamlArray -}}
{{- if ($daemon.plugin.config).nodeCondition }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* The scheduler's own section of its configuration. */}}
{{- define "hami-plugin.scheduler-section" -}}
{{- $section := deepCopy .Values.scheduler.config -}}
{{- with .Values.scheduler.claimVendors }}{{ $_ := set $section "claimVendors" . }}{{ end -}}
{{ toYaml $section }}
{{- end -}}

{{/* The resource by which a vendor's devices are counted, where it has one: what pods may ask a DeviceClass by. */}}
{{- define "hami-plugin.extended-name" -}}
{{- $counts := .root.Files.Get "files/counts.yaml" | fromYaml -}}
{{- $renamed := dig .vendor "resourceCountName" "" .root.Values.deviceConfig -}}
{{- dig .vendor "resourceCountName" $renamed .root.Values.devicePlugin | default (get $counts .vendor) -}}
{{- end -}}

{{- define "hami-plugin.admission-policies" -}}
{{- if and .Values.admissionPolicies.enabled (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") }}yes{{ end -}}
{{- end -}}

{{/* A probe of the values. One that names a command has no HTTP request besides. */}}
{{- define "hami-plugin.probe" -}}
{{- if hasKey . "exec" }}{{ toYaml (omit . "httpGet") }}{{ else }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* What of a daemon's values would give a pod that cannot live: all of it at once, each with the value's name. */}}
{{- define "hami-plugin.must-live" -}}
{{- $plugin := .plugin -}}
{{- $problems := list -}}
{{- if regexMatch "(^|/)projecthami/[^/]*$" $plugin.image.repository -}}
{{- $problems = append $problems (printf "image.repository: %s is an image of HAMi's, which does not have this daemon; name the image that `make image` built" $plugin.image.repository) -}}
{{- end -}}
{{- $sockets := list "kubelet.sock" -}}
{{- range $name := include "hami-plugin.resources" .root | fromYamlArray -}}
{{- $domain := splitList "/" $name | first -}}
{{- $sockets = append $sockets (printf "hami-%s-%s.sock" (splitList "." $domain | first) (splitList "/" $name | last)) -}}
{{- end -}}
{{- range $probe := list "livenessProbe" "readinessProbe" -}}
{{- $command := dig "exec" "command" list (index $plugin $probe) | join " " -}}
{{- range $socket := regexFindAll "[A-Za-z0-9._-]+[.]sock" $command -1 -}}
{{- if not (has $socket $sockets) -}}
{{- $problems = append $problems (printf "%s.exec: nothing here makes a socket %s, so the probe would always fail; leave %s out, whose default asks the daemon by HTTP" $probe $socket $probe) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $options := (.root.Files.Get "files/options.yaml" | fromYaml).run -}}
{{- range $argument := $plugin.extraArgs -}}
{{- $option := splitList "=" $argument | first -}}
{{- if and (hasPrefix "-" $option) (not (has $option $options)) -}}
{{- $problems = append $problems (printf "extraArgs: %s is no option of the daemon, which would not start; the options are %s" $option (join ", " $options)) -}}
{{- end -}}
{{- end -}}
{{- $taken := list "/" "/etc/hami-plugin" "/var/lib/hami-plugin" "/usr/local/vgpu" "/tmp/vgpulock" "/tmp" "/var/run/cdi" "/etc/cdi" "/driver-root" (printf "%s/device-plugins" $plugin.kubeletRoot) (printf "%s/pod-resources" $plugin.kubeletRoot) -}}
{{- if include "hami-plugin.claimed" $plugin | fromYamlArray -}}
{{- $taken = concat $taken (list (printf "%s/plugins_registry" $plugin.kubeletRoot) (printf "%s/plugins" $plugin.kubeletRoot)) -}}
{{- end -}}
{{- range $mount := $plugin.hostPaths -}}
{{- $path := $mount.path | default "" -}}
{{- if not (hasPrefix "/" $path) -}}
{{- $problems = append $problems (printf "hostPaths: %q is no absolute path; write it as {path: /opt/vendor}" $path) -}}
{{- else if has (clean $path) $taken -}}
{{- $problems = append $problems (printf "hostPaths: %s is mounted by the chart itself; leave it out" $path) -}}
{{- else -}}
{{- $taken = append $taken (clean $path) -}}
{{- end -}}
{{- end -}}
{{- range $vendor, $keys := .root.Files.Get "files/fixed.yaml" | fromYaml -}}
{{- $section := index $plugin $vendor | default dict -}}
{{- if ne (toString $section.enabled) "false" -}}
{{- range $key, $one := $keys -}}
{{- if and (hasKey $section $key) (not (has (index $section $key | toString) $one.values)) -}}
{{- $problems = append $problems (printf "%s.%s: %v cannot be set for this vendor, where %s; remove it" $vendor $key (index $section $key) $one.served) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $hamis := .root.Values.deviceConfig.nvidia | default dict -}}
{{- $split := $plugin.nvidia.deviceSplitCount | default $plugin.nvidia.splitCount | default 10 -}}
{{- if and $hamis.deviceSplitCount (eq (toString $split) "10") -}}
{{- $split = $hamis.deviceSplitCount -}}
{{- end -}}
{{- if and (eq (toString $plugin.nvidia.computeMode) "ExclusiveProcess") (ne (toString $split) "1") -}}
{{- $problems = append $problems (printf "nvidia.computeMode: with ExclusiveProcess one process may use a card at a time, and splitCount is %v; set splitCount to 1" $split) -}}
{{- end -}}
{{- if and (regexMatch "^(127\\.|::1$)" (toString $plugin.config.httpHost)) (hasKey $plugin.livenessProbe "httpGet") (not (hasKey $plugin.livenessProbe "exec")) -}}
{{- $problems = append $problems (printf "config.httpHost: the kubelet's probes cannot reach %s, and it would restart the daemon for ever; leave it out, or limit access with networkPolicy" $plugin.config.httpHost) -}}
{{- end -}}
{{- range $vendor := include "hami-plugin.claimed" $plugin | fromYamlArray -}}
{{- $always := eq (dig $vendor "frontEnd" "" $plugin | toString) "dra" -}}
{{- if and $always (not ($.root.Capabilities.APIVersions.Has "resource.k8s.io/v1/DeviceClass")) -}}
{{- $problems = append $problems (printf "%s.frontEnd: this cluster (%s) has no resource.k8s.io/v1; leave it out before Kubernetes 1.34" $vendor $.root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and $always (eq $vendor "nvidia") (has (toString $plugin.nvidia.migMode) (list "enabled" "disabled")) -}}
{{- $problems = append $problems "nvidia.frontEnd: dra switches no card's mode, and migMode is set; leave one of both out" -}}
{{- end -}}
{{- end -}}
{{- range $problem := $problems -}}
{{ printf "devicePlugin.%s%s" $.of $problem }}
{{ end -}}
{{- end -}}

{{/* Fails the whole chart where a daemon or the scheduler could not live. */}}
{{- define "hami-plugin.check" -}}
{{- $problems := "" -}}
{{- range $daemon := include "hami-plugin.daemons" . | fromYamlArray -}}
{{- $of := ternary (printf "pools[%s]." $daemon.pool) "" (hasKey $daemon "pool") -}}
{{- $problems = printf "%s%s" $problems (include "hami-plugin.must-live" (dict "root" $ "plugin" $daemon.plugin "of" $of)) -}}
{{- end -}}
{{- $selectors := dict -}}
{{- range $daemon := include "hami-plugin.daemons" . | fromYamlArray -}}
{{- if hasKey $daemon "pool" -}}
{{- $nodes := $daemon.plugin.nodeSelector | toJson -}}
{{- if hasKey $selectors $nodes -}}
{{- $problems = printf "%sdevicePlugin.pools[%s].nodeSelector: %s is the one of pools[%s] too, so nodes would run two daemons; give each pool other nodes\n" $problems $daemon.pool $nodes (index $selectors $nodes) -}}
{{- end -}}
{{- $_ := set $selectors $nodes $daemon.pool -}}
{{- end -}}
{{- end -}}
{{- $options := (.Files.Get "files/options.yaml" | fromYaml).scheduler -}}
{{- range $argument := .Values.scheduler.extraArgs -}}
{{- $option := splitList "=" $argument | first -}}
{{- if and (hasPrefix "-" $option) (not (has $option $options)) -}}
{{- $problems = printf "%sscheduler.extraArgs: %s is no option of the scheduler, which would not start; the options are %s\n" $problems $option (join ", " $options) -}}
{{- end -}}
{{- end -}}
{{- $claimed := include "hami-plugin.all-claimed" . | fromYamlArray -}}
{{- range $vendor := .Values.scheduler.claimVendors -}}
{{- if not (has $vendor $claimed) -}}
{{- $problems = printf "%sscheduler.claimVendors: no daemon offers devices of %s by claims; set devicePlugin.%s.frontEnd to dra, or leave it out\n" $problems $vendor $vendor -}}
{{- end -}}
{{- end -}}
{{- with trim $problems -}}
{{- fail (printf "\n%s" .) -}}
{{- end -}}
{{- end -}}
