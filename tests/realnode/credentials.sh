# Keys, certificates and tokens of the cluster, in the folder $1; $2 is the node's name, $3 its address. What follows
# are further nodes, as name=address: each has a folder of its own for what is its kubelet's.
set -eu
mkdir -p "$1"
cd "$1"
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

key ca
openssl req -x509 -new -key ca.key -subj /CN=test-ca -days 3 -out ca.crt
openssl genrsa -out accounts.key 2048 2>/dev/null
echo "subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,DNS:$2,IP:127.0.0.1,IP:10.96.0.1,IP:$3" >names

certificate() {
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3 -extfile names -out "$1.crt" 2>/dev/null
}
certificate apiserver /CN=kube-apiserver
certificate kubelet "/CN=$2"
certificate client /O=system:masters/CN=apiserver-kubelet-client
config() { # $1 the token's name, $2 the server's address, $3 the file
    cat >"$3" <<T
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$2:443", certificate-authority: $PWD/ca.crt}}]
users: [{name: u, user: {token: $1-token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
T
}

cat >tokens.csv <<T
admin-token,admin,admin-uid,system:masters
kubelet-token,system:node:$2,node-uid,system:nodes
scheduler-token,system:kube-scheduler,scheduler-uid
controllers-token,system:kube-controller-manager,controllers-uid,system:masters
T
for who in admin kubelet scheduler controllers; do
    config "$who" 127.0.0.1 "$who.kubeconfig"
done

first=$3
shift 3
for node in "$@"; do
    name=${node%=*}
    mkdir "$name"
    echo "subjectAltName=DNS:$name,IP:${node#*=}" >names
    certificate "$name/kubelet" "/CN=$name"
    config "$name" "$first" "$name/kubelet.kubeconfig"
    echo "$name-token,system:node:$name,$name-uid,system:nodes" >>tokens.csv
done
