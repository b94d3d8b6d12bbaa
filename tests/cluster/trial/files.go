package trial

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/cli"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// The images that are built here and loaded into every node. A tag other than latest is
// never pulled.
const (
	pauseImage  = "skerry.local/pause:1"
	sampleImage = "skerry.local/sample:1"
)

// Where programs on a host find their things: the places of a real device.
const (
	edgecoreConfig   = "/etc/skerry/edgecore.yaml"
	cloudcoreConfig  = "/etc/skerry/cloudcore.yaml"
	kubeletConfig    = "/etc/kubernetes/kubelet.yaml"
	kubeletKube      = "/etc/kubernetes/kubelet.kubeconfig"
	kubeletCA        = "/etc/kubernetes/ca.crt"
	kubeletCert      = "/etc/kubernetes/kubelet.crt"
	kubeletKey       = "/etc/kubernetes/kubelet.key"
	cloudcoreKube    = "/etc/skerry/cloudcore.kubeconfig"
	approverKube     = "/etc/skerry/approver.kubeconfig"
	edgeKube         = "/var/lib/skerry/edge.kubeconfig"
	containerdSocket = "/run/containerd/containerd.sock"
	planeDir         = "/var/lib/kubeplane"
	egressFile       = "/etc/skerry/egress.yaml"
	egressCA         = "/etc/skerry/egress-ca.crt"
	egressCAKey      = "/etc/skerry/egress-ca.key"
	proxyKube        = "/etc/kubernetes/kube-proxy.kubeconfig"

	// tunnelPort is where cloudcore connects kube-apiserver to kubelets. It is dialled through a
	// balancer next to kube-apiserver.
	tunnelPort    = "10004"
	tunnelName    = "cloudcore-tunnel" // the Service, where there is one
	egressAddress = "127.0.0.1:10014"
)

// doc is a YAML or JSON document.
type doc = map[string]any

// writeHost writes a file of a running host, by the host's own path.
func (t *Trial) writeHost(name, path string, content []byte, mode os.FileMode) error {
	full := filepath.Join(t.machine(name).Root(), path)
	if have, err := os.ReadFile(full); err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return fmt.Errorf("making a directory on %s: %w", name, err)
	}
	if err := os.WriteFile(full, content, mode); err != nil {
		return fmt.Errorf("writing %s on %s: %w", path, name, err)
	}
	return nil
}

// readHost reads a file of a running host; one that is not there is fs.ErrNotExist.
func (t *Trial) readHost(name, path string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(t.machine(name).Root(), path))
	if err != nil {
		return nil, fmt.Errorf("reading %s on %s: %w", path, name, err)
	}
	return raw, nil
}

// containerdFile is containerd's configuration, version 2, which 1.6 to 2.x read.
func containerdFile(cniBin, snapshotter string) []byte {
	return fmt.Appendf(nil, `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = %q

# Below our own directory: the default would be the machine's /opt.
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # The machine may be a container or a small virtual machine itself: no right to lower OOM scores, no AppArmor, no huge pages.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, containerdSocket, pauseImage, cniBin, snapshotter)
}

// cniFile is the pod network of a plain node: a bridge of its own, behind the node's address or
// routed. An edge makes its own. Addresses are kept in /run, so that a reboot gives them all back.
func cniFile(n Node, masquerade bool) ([]byte, error) {
	return json.MarshalIndent(doc{
		"cniVersion": "0.4.0", "name": "pods",
		"plugins": []doc{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": masquerade, "hairpinMode": true,
				"ipam": doc{
					"type": "host-local", "dataDir": "/run/cni",
					"ranges": [][]doc{{{"subnet": lab.Pods(n.Number).String()}}},
					"routes": []doc{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": doc{"portMappings": true}},
		},
	}, "", "  ")
}

// kubelet is the KubeletConfiguration of every node, with edgecore or without.
func (t *Trial) kubelet(n Node) doc {
	return doc{
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + t.cgroup(n.Name),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"resolvConf":               "",
		"staticPodPath":            "/etc/skerry/manifests",
		// The default is in the machine's /usr.
		"volumePluginDir":        "/var/lib/kubelet/volumeplugins",
		"enforceNodeAllocatable": []string{"pods"},
		"evictionHard":           doc{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		// Images come only from here: they are never collected.
		"imageGCHighThresholdPercent": 100,
		"makeIPTablesUtilChains":      false,
	}
}

// edgecoreFile is an edge's edgecore.yaml.
func (t *Trial) edgecoreFile(n Node) ([]byte, error) {
	config := doc{
		"apiVersion": "config.skerry.io/v1alpha1",
		"kind":       "EdgeCore",
		"modules": doc{
			"edgeHub": doc{"servers": []string{t.server()}, "transport": t.state.Options.Link},
			"edged":   doc{"kubelet": t.kubelet(n), "sandboxImageArchive": t.initPath() + ".tar"},
		},
	}
	if !t.state.Options.InCluster { // there devices are as they are by default
		for _, module := range []string{"site", "services", "names"} {
			config["modules"].(doc)[module] = doc{"enable": true}
		}
	}
	for _, s := range slices.Concat(t.state.Options.Set, t.machine(n.Name).Set) { // not append: nodes are made side by side, and the first is theirs in common
		path, value, err := parseSet(s)
		if err != nil {
			return nil, err
		}
		if err := set(config, path, value); err != nil {
			return nil, cli.Badf("--set %s: %w", s, err)
		}
	}
	return yaml.Marshal(config)
}

// kubeletAlone is an edgecore.yaml with the kubelet's settings for this machine alone.
func (t *Trial) kubeletAlone(n Node) ([]byte, error) {
	return yaml.Marshal(doc{
		"apiVersion": "config.skerry.io/v1alpha1", "kind": "EdgeCore", "modules": doc{"edged": doc{"kubelet": t.kubelet(n)}},
	})
}

// parseSet splits path=value; the value is YAML.
func parseSet(s string) (path []string, value any, err error) {
	key, text, ok := strings.Cut(s, "=")
	path = strings.Split(key, ".")
	if !ok || key == "" {
		return nil, nil, fmt.Errorf("%q is not path=value, like modules.edged.reportEvent=true", s)
	}
	for _, p := range path {
		if p == "" {
			return nil, nil, fmt.Errorf("%q has an empty name in its path", s)
		}
	}
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		return nil, nil, fmt.Errorf("the value of %q is not YAML: %w", key, err)
	}
	return path, value, nil
}

func set(config doc, path []string, value any) error {
	for i, name := range path[:len(path)-1] {
		next, ok := config[name]
		if !ok {
			next = doc{}
			config[name] = next
		}
		if config, ok = next.(doc); !ok {
			return fmt.Errorf("%s is no section", strings.Join(path[:i+1], "."))
		}
	}
	config[path[len(path)-1]] = value
	return nil
}

// ArtefactsDir is where replicas of cloudcore have the repository of artefacts.
const ArtefactsDir = "/var/lib/skerry-artefacts"

// CopyArtefacts replaces the repository of artefacts in a host's file tree, root, by another one.
func CopyArtefacts(root, repository string) error {
	dir := filepath.Join(root, ArtefactsDir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.CopyFS(dir, os.DirFS(repository))
}

// cloudcoreFile is cloudcore.yaml.
func (t *Trial) cloudcoreFile() ([]byte, error) {
	tunnel := doc{}
	if t.state.Options.Streams == StreamsEndpoint {
		tunnel["endpoint"] = doc{"listen": ":10250", "hideAddresses": true}
	}
	relay := doc{}
	if t.state.Options.Quick {
		relay["leaseRenewal"] = "10s" // a node is NotReady after 12 s
	}
	return yaml.Marshal(doc{
		"logs":       doc{"endpoint": t.state.Options.Logs},
		"relay":      relay,
		"tunnel":     tunnel,
		"apiVersion": "config.skerry.io/v1alpha1",
		"kind":       "CloudCore",
		"kubeconfig": cloudcoreKube,
		"approver":   doc{"kubeconfig": approverKube},
		"advertise":  []string{t.server(), lab.Replica6(1).String()}, // the second is there once the link has IPv6
		"usage":      doc{"listen": ":10005"},

		"subresources": doc{"listen": ":10006"},
		"artefacts":    doc{"dir": ArtefactsDir}, // need not be there
	})
}

func (t *Trial) balancerKube() string { return filepath.Join(t.hostDir(router), "kubeconfig") }

// egress is how kube-apiserver reaches nodes: through cloudcore, which dials ordinary nodes
// directly.
func (t *Trial) egress() ([]byte, error) {
	identity := planeDir + "/pki/apiserver-kubelet-client"
	return yaml.Marshal(doc{
		"apiVersion": "apiserver.k8s.io/v1beta1",
		"kind":       "EgressSelectorConfiguration",
		"egressSelections": []doc{{
			"name": "cluster",
			"connection": doc{
				"proxyProtocol": "HTTPConnect",
				"transport": doc{"tcp": doc{
					"url": "https://" + egressAddress,
					"tlsConfig": doc{
						"caBundle": egressCA, "clientCert": identity + ".crt", "clientKey": identity + ".key", "tlsServerName": t.server(),
					},
				}},
			},
		}},
	})
}

// kubeletFile is the configuration file of an ordinary kubelet.
func (t *Trial) kubeletFile(n Node) ([]byte, error) {
	config := doc{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": doc{
			"anonymous": doc{"enabled": false}, "webhook": doc{"enabled": true}, "x509": doc{"clientCAFile": kubeletCA},
		},
		"authorization":     doc{"mode": "Webhook"},
		"tlsCertFile":       kubeletCert,
		"tlsPrivateKeyFile": kubeletKey,
	}
	maps.Copy(config, t.kubelet(n))
	return yaml.Marshal(config)
}

// cniDir is where this machine has the CNI plugins.
func cniDir() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("CNI plugins are missing: apt-get install containernetworking-plugins")
}

// snapshotterFor chooses how containerd stacks layers: overlayfs does not go on top of another
// overlayfs, as in a development container.
func snapshotterFor(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}
