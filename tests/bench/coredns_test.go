package bench_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// coreServer is where CoreDNS answers on the plain node: on the loopback interface of its
// own network.
const coreServer = "127.0.0.1:53"

// corefile is kubeadm's for CoreDNS (kubernetes/kubernetes,
// cmd/kubeadm/app/phases/addons/dns/manifests.go), but for the upstream: hosts of a trial have no
// upstream.
const corefile = `.:53 {
    bind 127.0.0.1
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       kubeconfig %s
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . 192.0.2.1 {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
`

// runCoreDNS runs CoreDNS on the plain node, with the rights and the configuration that
// kubeadm gives it.
func (s *bench) runCoreDNS(b *testing.B) (stop func()) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	work := filepath.Join(root, *dir, "coredns") // goes with the trial
	check(b, os.MkdirAll(work, 0o700))
	config, file := filepath.Join(work, "kubeconfig"), filepath.Join(work, "Corefile")
	s.coreAccount(b, config)
	check(b, os.WriteFile(file, fmt.Appendf(nil, corefile, config), 0o600))
	return s.runPlain(b, "coredns", filepath.Join(work, "log"), "-conf", file)
}

// coreAccount gives CoreDNS an account of its own, with the rights of kubeadm's
// ClusterRole system:coredns, and writes its kubeconfig.
func (s *bench) coreAccount(b *testing.B, path string) {
	b.Helper()
	const name, namespace = "bench-coredns", metav1.NamespaceSystem
	ctx, meta := b.Context(), metav1.ObjectMeta{Name: name}
	_, err := s.client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	check(b, err)
	read := []string{"list", "watch"}
	_, err = s.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"endpoints", "services", "pods", "namespaces"}, Verbs: read},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
	}}, metav1.CreateOptions{})
	check(b, err)
	_, err = s.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	check(b, err)
	hours := int64(12 * 3600)
	token, err := s.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours}}, metav1.CreateOptions{})
	check(b, err)
	var raw bytes.Buffer
	code, err := s.Exec(ctx, plain, trial.Streams{Out: &raw, Err: os.Stderr}, nil, "cat", "/etc/kubernetes/kubelet.kubeconfig")
	check(b, err)
	if code != 0 {
		b.Fatalf("reading the kubelet's kubeconfig: code %d", code)
	}
	config, err := clientcmd.Load(raw.Bytes())
	check(b, err)
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	check(b, clientcmd.WriteToFile(*config, path))
}
