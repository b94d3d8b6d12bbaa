package join_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

// finding is an entry of `edgecore check -o json`.
type finding struct{ Name, Level, Message, Mend string }

func findings(t *testing.T, text string) map[string]finding {
	t.Helper()
	var list []finding
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	all := map[string]finding{}
	for _, f := range list {
		name, _, _ := strings.Cut(f.Name, " 127.0.0.1:")
		all[name] = f
	}
	return all
}

// bareDevice runs its argument, a shell script, where containerd, its folders, /etc, /run and the
// network are the script's own: a device as it is before it joins, with the packages' network
// configuration in its place.
const bareDevice = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p "$1/etc/cni/net.d"
cp build/package/examples/10-bridge.conflist "$1/etc/cni/net.d/"
cp -a /etc/alternatives "$1/etc/" # iptables is a link into it
mount --bind "$1/etc" /etc
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo "$3" >"$1/edgecore.yaml"
echo 'version = 2' >"$1/containerd.toml"
containerd --config "$1/containerd.toml" >"$1/containerd.log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
until ctr version >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
`

// TestShip_14_CheckBeforeJoin: before a join `edgecore check` has a note, and its exit code is 0,
// on a device with a real containerd, a network of its own and the example configuration that the
// package brings. A fault is found: a folder of containerd that is mounted noexec.
func TestShip_14_CheckBeforeJoin(t *testing.T) {
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	// The machine of the test may have settings that the kubelet refuses by default.
	const config = "apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\nmodules: {edged: {kubelet: {failCgroupV1: false, failSwapOn: false}}}"
	check := func(also string) (map[string]finding, int) {
		t.Helper()
		script := bareDevice + also + "\ncode=0\n\"$2\" check -o json --config \"$1/edgecore.yaml\" || code=$?\nexit $code\n"
		dir := t.TempDir()
		out, said, code := run(t, "unshare", "--mount", "--net", "sh", "-c", script, "sh", dir, programs[1], config)
		if t.Failed() || !strings.HasPrefix(out, "[") {
			raw, _ := os.ReadFile(filepath.Join(dir, "containerd.log"))
			t.Fatalf("exit code %d, %s%s\ncontainerd:\n%s", code, out, said, raw)
		}
		return findings(t, out), code
	}
	found, code := check("")
	if code != 0 || found["identity"].Level != "note" || found["containerd"].Level != "fine" || found["programs"].Level != "fine" {
		t.Errorf("exit code %d: %+v", code, found)
	}
	found, code = check("mkdir -p /var/lib/containerd && mount -t tmpfs -o noexec tmpfs /var/lib/containerd")
	if code != 1 || found["programs"].Level != "fail" {
		t.Errorf("noexec: exit code %d: %+v", code, found["programs"])
	}
}

// TestCheckCloud: with a host and a token the way to a real cloudcore is checked; a proxy that ends
// TLS is named; the token is not used up.
func TestCheckCloud(t *testing.T) {
	s := newSystem(t)
	token := s.token(t)
	config, _ := device(t)
	check := func(host string) map[string]finding {
		t.Helper()
		out, said, _ := runWith(t, token+"\n", s.edgecore, "check", "--config", config, "-o", "json", "--token-file", "-", host)
		if !strings.HasPrefix(out, "[") {
			t.Fatal(out, said)
		}
		return findings(t, out)
	}
	cluster.Eventually(t, "all that leads to the cloud to be fine", func(context.Context) error {
		found := check(s.join)
		for _, name := range []string{"cloud", "websocket", "cloud's clock", "kubernetes"} {
			if found[name].Level != "fine" {
				return fmt.Errorf("%s: %+v", name, found[name])
			}
		}
		return nil
	})
	proxy := httptest.NewUnstartedServer(http.NotFoundHandler())
	proxy.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	proxy.StartTLS()
	defer proxy.Close()
	at := strings.TrimPrefix(proxy.URL, "https://")
	if f := check(at)["cloud"]; f.Level != "fail" || !strings.Contains(f.Message, "proxy") || !strings.Contains(f.Message, "Acme Co") {
		t.Errorf("through a proxy that ends TLS: %+v", f)
	}
	if _, said, code := run(t, s.edgecore, "check", "--config", config, "--token", token); code != 2 {
		t.Errorf("a token without a host: exit code %d, %s", code, said)
	}
	if _, said, code := s.edge(t, config, token, "checked", s.join); code != 0 {
		t.Errorf("join after the checks: exit code %d, %s", code, said)
	}
}

// TestJoinRefusesNewerKubelet: a real cloudcore at a real kube-apiserver refuses a kubelet that is
// newer than that, or too old, and names the version to install. The versions are those that a
// device sends; TestKubeletFits has the rule.
func TestJoinRefusesNewerKubelet(t *testing.T) {
	s := newSystem(t)
	parsed, err := pki.ParseToken(s.token(t, "--uses", "5"))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, node types.NodeName, kubelet string) (int, pki.Refusal, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return 0, pki.Refusal{}, err
		}
		csr, err := pki.NewNodeCSR(key, node)
		if err != nil {
			return 0, pki.Refusal{}, err
		}
		body, err := json.Marshal(pki.JoinRequest{NodeName: node, CSR: string(csr), Version: "v0.0.0-test", Protocol: topic.Protocol, Kubernetes: kubelet})
		if err != nil {
			return 0, pki.Refusal{}, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.join+pki.JoinPath, bytes.NewReader(body))
		if err != nil {
			return 0, pki.Refusal{}, err
		}
		request.Header.Set("Authorization", "Bearer "+parsed.Bearer())
		// The token's pin is verified elsewhere.
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}}
		defer client.CloseIdleConnections()
		response, err := client.Do(request)
		if err != nil {
			return 0, pki.Refusal{}, err
		}
		defer response.Body.Close()
		var refusal pki.Refusal
		raw, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = json.Unmarshal(raw, &refusal)
		}
		return response.StatusCode, refusal, err
	}
	for kubelet, node := range map[string]types.NodeName{"v1.99.0": "too-new", "v1.30.2": "too-old"} {
		cluster.Eventually(t, "a kubelet "+kubelet+" to be refused", func(ctx context.Context) error {
			status, refusal, err := ask(ctx, node, kubelet)
			if err != nil {
				return err
			}
			if status != http.StatusForbidden || refusal.Reason != pki.ReasonSkew || !strings.Contains(refusal.Message, "skerry-edgecore with Kubernetes 1.34 to 1.37") {
				return fmt.Errorf("status %d, %+v", status, refusal)
			}
			return nil
		})
	}
	cluster.Eventually(t, "a kubelet that fits to join", func(ctx context.Context) error {
		status, refusal, err := ask(ctx, "fits", "v1.36.4")
		if err == nil && status != http.StatusOK {
			err = &refusal
		}
		return err
	})
}
