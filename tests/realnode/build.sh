# Builds Kubernetes' programs: the old way of Go, by GOPATH, since its vendored modules do not check.
# $1 is the part, "describe" or "build"; $2 the folder with go/src/k8s.io/kubernetes; $3 the version; $4 the libraries
# that Debian's own replace, $5 the programs, both parted by commas.
set -eu
part=$1 work=$2 version=$3 replaced=$4 names=$5
cd "$work/go/src/k8s.io/kubernetes"
export GOPATH="$work/go" GOCACHE="$work/gocache" GO111MODULE=off GOFLAGS='' CGO_ENABLED=0 HOME=/root TMPDIR="$work"

describe() {
    for library in $(echo "$replaced" | tr , ' '); do
        rm -r "vendor/github.com/$library"
        mkdir "vendor/github.com/$library"
        find "/usr/share/gocode/src/github.com/$library" -maxdepth 1 \( -name '*.go' -o -name '*.s' \) \
            ! -name '*_test.go' -exec cp {} "vendor/github.com/$library/" \;
    done
    go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    folders=$(grep -rl --include='*.go' --exclude='zz_generated*' '^// +k8s:openapi-gen=' pkg staging/src plugin cmd |
        grep -v -e staging/src/k8s.io/code-generator/ -e staging/src/k8s.io/sample-apiserver/ -e _test.go |
        xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^staging/src/#vendor/#; s#^#k8s.io/kubernetes/#' | paste -sd,)
    "$work/openapi-gen" --logtostderr --input-dirs "$folders" \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
        --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt --report-filename "$work/violations"
}

build() {
    server=k8s.io/kubernetes/vendor/k8s.io/component-base/version
    client=k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version
    go build -tags 'providerless dockerless' -o "$work/bin/" \
        -ldflags "-s -w -X $server.gitVersion=$version -X $server.gitMajor=1 -X $server.gitMinor=20 -X $client.gitVersion=$version" \
        $(echo "$names" | tr , '\n' | sed 's#^#./cmd/#')
}

"$part"
