package bench_test

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	guests "github.com/skerry-io/skerry/tests/machine"
)

const (
	whatPowerOn = "a machine with 10 pods, each with ConfigMap, Secret and token: from power on to all containers running"
	whatOrderly = "a machine with the same: from the request to reboot in order to all containers running again"
	// bootPatience is for one boot of a guest of user-mode Linux.
	bootPatience = 10 * time.Minute
	bootPods     = 10
)

// booted is a real machine with its pods.
type booted struct {
	*guests.Machine
	name string
}

// boots compares two machines, guests of user-mode Linux with Debian and systemd: one with edgecore
// from its package, one with the plain kubelet. They are on by turns.
func (s *bench) boots(b *testing.B) {
	if err := guests.Possible(b.Context()); err != nil {
		b.Skip(err)
	}
	s.up(b)
	ours, theirs := s.makeMachine(b, "bootedge", 9, s.joinEdge), s.makeMachine(b, "bootplain", 8, s.joinPlain)
	const floor = "plain kubelet"
	on := row{what: whatPowerOn, unit: "s", floorName: floor, goal: "at most 1.1 x", judge: ratio(1.1)}
	orderly := row{what: whatOrderly, unit: "s", floorName: floor, goal: "at most 1.1 x", judge: ratio(1.1)}
	for range *rounds {
		for _, m := range []booted{ours, theirs} {
			began := time.Now()
			check(b, m.Start())
			ended := m.runs(b, "")
			power := time.Since(began).Seconds()
			s.awaitReady(b, m.name)
			began = time.Now()
			if _, err := m.Run(b.Context(), "systemctl reboot"); err != nil && !errors.Is(err, guests.ErrSilent) {
				b.Fatal(err)
			}
			m.runs(b, ended)
			reboot := time.Since(began).Seconds()
			b.Logf("%s: power on %.1f s, orderly reboot %.1f s", m.name, power, reboot)
			m.cut(b)
			if m == ours {
				on.ours, orderly.ours = append(on.ours, power), append(orderly.ours, reboot)
			} else {
				on.floor, orderly.floor = append(on.floor, power), append(orderly.floor, reboot)
			}
		}
	}
	on.note = "both machines are Debian 12 with systemd and containerd as a guest of user-mode Linux, with a link, on one processor; kernel, units and containerd are in it. The power was cut before, after a sync(1): without one edgecore's machine starts its pods too, and the plain kubelet's does not (docs/autonomy.md)."
	orderly.note = "edgecore ends the containers in order while systemd-logind waits for it; a plain kubelet with Kubernetes' defaults leaves them to the end of the machine."
	s.rows = append(s.rows, on, orderly)
}

// makeMachine makes a machine with ten pods, and cuts its power.
func (s *bench) makeMachine(b *testing.B, name string, number int, join func(*testing.B, booted)) booted {
	b.Helper()
	router, err := s.Host("router")
	check(b, err)
	guest, err := guests.New(b.Context(), guests.Spec{Name: name, Mark: b.TempDir(), Number: number, Memory: 1500, Dir: b.TempDir(), Router: router})
	check(b, err)
	m := booted{guest, name}
	b.Cleanup(func() { check(b, m.Cut(context.WithoutCancel(b.Context()))) })
	check(b, m.Start())
	m.await(b, "case $(systemctl is-system-running --wait) in running|degraded) ;; *) exit 1 ;; esac")
	join(b, m)
	s.awaitReady(b, name)
	s.start(b, podsOf("boot", name, bootPods)...)
	m.cut(b)
	return m
}

// cut cuts the power once everything is on the disk: containerd and a plain kubelet don't start
// pods again whose sandboxes are younger than the kernel's last writes.
func (m booted) cut(b *testing.B) {
	b.Helper()
	_, err := m.Run(b.Context(), "sync")
	check(b, err)
	check(b, m.Cut(b.Context()))
}

// runs waits for all containers, of another boot than before, and names the boot.
func (m booted) runs(b *testing.B, before string) (boot string) {
	b.Helper()
	return m.await(b, guests.Cgroups+fmt.Sprintf("[ \"$(cat /proc/sys/kernel/random/boot_id)\" != '%s' ] || exit 1; until [ $(count) -ge %d ]; do sleep 0.2; done; echo -n $(cat /proc/sys/kernel/random/boot_id)", before, 2*bootPods))
}

func (m booted) await(b *testing.B, script string) (out string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), bootPatience)
	defer cancel()
	check(b, poll.Until(ctx, 100*time.Millisecond, func(ctx context.Context) (err error) {
		out, err = m.Run(ctx, script)
		return err
	}))
	return out
}

func (s *bench) joinEdge(b *testing.B, m booted) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	token, err := exec.CommandContext(b.Context(), filepath.Join(root, "bin", "cloudcore"), "token", "create", "--kubeconfig", s.Kubeconfig(), "--node", m.name).Output()
	check(b, err)
	check(b, m.Join(b.Context(), guests.Package{Root: root, Images: s.images(root)}, token, ""))
}

func (s *bench) images(root string) string { return filepath.Join(root, *dir, "images") }

// joinPlain installs the plain kubelet as a unit, with the bridge of the trial's plain nodes.
func (s *bench) joinPlain(b *testing.B, m booted) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	cloud := s.host(b, "cloud")
	pki := filepath.Join(cloud.Root(), "var", "lib", "kubeplane", "pki")
	cert, key, err := ca.Client(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"), pkix.Name{CommonName: "system:node:" + m.name, Organization: []string{"system:nodes"}})
	check(b, err)
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	check(b, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["trial"] = &clientcmdapi.Cluster{Server: "https://" + lab.Cloud().String() + ":6443", CertificateAuthorityData: authority}
	config.AuthInfos["node"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["trial"] = &clientcmdapi.Context{Cluster: "trial", AuthInfo: "node"}
	config.CurrentContext = "trial"
	check(b, clientcmd.WriteToFile(*config, filepath.Join(m.Share(), "kubeconfig")))
	for name, from := range map[string]string{
		"plainkubelet": filepath.Join(root, "bin", "plainkubelet"),
		"pause.tar":    filepath.Join(s.images(root), "pause.tar"), "sample.tar": filepath.Join(s.images(root), "sample.tar"),
	} {
		raw, err := os.ReadFile(from)
		check(b, err)
		check(b, os.WriteFile(filepath.Join(m.Share(), name), raw, 0o755))
	}
	_, err = m.Run(b.Context(), `set -e
		install /host/plainkubelet /usr/bin/plainkubelet
		mkdir -p /etc/kubernetes /etc/cni/net.d
		install -m 600 /host/kubeconfig /etc/kubernetes/kubeconfig
		for name in pause sample; do ctr -n k8s.io images import /host/$name.tar; done
		ctr -n k8s.io images tag skerry.local/pause:1 $(containerd config dump | sed -n 's/^ *sandbox_image = "\(.*\)"/\1/p')
		cat >/etc/kubernetes/kubelet.yaml <<'X'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
resolvConf: ""
X
		cat >/etc/cni/net.d/10-pods.conflist <<'X'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.222.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
X
		cat >/etc/systemd/system/kubelet.service <<'X'
[Unit]
After=containerd.service network.target
Wants=containerd.service
[Service]
ExecStart=/usr/bin/plainkubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubeconfig --hostname-override=`+m.name+`
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
[Install]
WantedBy=multi-user.target
X
		systemctl daemon-reload
		systemctl enable --now kubelet`)
	check(b, err)
}
