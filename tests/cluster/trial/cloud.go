package trial

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
	"github.com/skerry-io/skerry/tests/cluster/sample"
)

// nodesTimeout is for all nodes to be Ready with their pods running.
const nodesTimeout = 3 * time.Minute

// startPlane brings up the control plane.
func (t *Trial) startPlane(ctx context.Context) error {
	if err := t.configurePlane(); err != nil {
		return err
	}
	plane, err := t.program(Cloud, "kubeplane")
	if err != nil {
		return err
	}
	if err := t.start(ctx, Cloud, plane); err != nil {
		return err
	}
	if err := t.writeKubeconfig(); err != nil {
		return err
	}
	t.say("kube-apiserver is ready")
	return nil
}

// startCloud brings up the manifests and cloudcore.
func (t *Trial) startCloud(ctx context.Context) error {
	cfg, err := t.Admin()
	if err != nil {
		return err
	}
	if t.state.Options.InCluster {
		if t.state.Options.Sample {
			if err := t.apply(ctx, cfg, "manifests/examples/sample"); err != nil {
				return err
			}
		}
		return t.startInCluster(ctx, cfg)
	}
	dirs := []string{"manifests/cloudcore", "manifests/autonomy"}
	if _, err := os.Stat(filepath.Join(t.root, "manifests/crds/kustomization.yaml")); err == nil {
		dirs = append([]string{"manifests/crds"}, dirs...)
	}
	dirs = append(dirs, "tests/cluster/trial/pool")
	if t.state.Options.Sample {
		dirs = append(dirs, "manifests/examples/sample")
	}
	if err := t.apply(ctx, cfg, dirs...); err != nil {
		return err
	}
	if err := t.configureCloudcore(ctx, cfg); err != nil {
		return err
	}
	if err := t.offerAPIs(ctx, cfg); err != nil {
		return err
	}
	for _, name := range t.state.Options.Replicas() {
		core, err := t.program(name, "cloudcore")
		if err != nil {
			return err
		}
		if err := t.start(ctx, name, core); err != nil {
			return err
		}
	}
	t.say("cloudcore is ready")
	return nil
}

// apply applies folders of manifests, where they changed or somebody changed the objects.
func (t *Trial) apply(ctx context.Context, cfg *rest.Config, dirs ...string) error {
	inputs, err := manifest.Sum(t.root, append(dirs, "manifests")...)
	if err != nil {
		return err
	}
	return t.record("manifests", inputs).Apply(ctx, cfg, func() ([]*unstructured.Unstructured, error) {
		var all []*unstructured.Unstructured
		for _, dir := range dirs {
			objects, err := manifest.Build(filepath.Join(t.root, dir))
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
		return all, nil
	})
}

// configurePlane writes kube-apiserver's files for its start: the way to nodes, and the CA by which
// it verifies cloudcore, which is not there yet.
func (t *Trial) configurePlane() error {
	if _, err := t.readHost(Cloud, egressCA); errors.Is(err, os.ErrNotExist) {
		cert, key, err := ca.New("skerry serving CA")
		if err != nil {
			return err
		}
		if err := t.writeHost(Cloud, egressCAKey, key, 0o600); err != nil {
			return err
		}
		if err := t.writeHost(Cloud, egressCA, cert, 0o644); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	file, err := t.egress()
	if err != nil {
		return err
	}
	return t.writeHost(Cloud, egressFile, file, 0o644)
}

// configureCloudcore gives cloudcore the rights of its ServiceAccount, which are exactly those
// of the manifests.
func (t *Trial) configureCloudcore(ctx context.Context, admin *rest.Config) error {
	file, err := t.cloudcoreFile()
	if err != nil {
		return err
	}
	for _, name := range t.state.Options.Replicas() {
		if err := t.writeHost(name, cloudcoreConfig, file, 0o644); err != nil {
			return err
		}
	}
	// All replicas have the same.
	if raw, err := t.readHost(Cloud, cloudcoreKube); err == nil {
		return t.shareKubeconfig(raw)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := t.bringCA(ctx, client); err != nil {
		return err
	}
	raw, err := accountKubeconfig(ctx, client, admin, "cloudcore-approver")
	if err != nil {
		return err
	}
	for _, name := range t.state.Options.Replicas() {
		if err := t.writeHost(name, approverKube, raw, 0o600); err != nil {
			return err
		}
	}
	if raw, err = accountKubeconfig(ctx, client, admin, "cloudcore"); err != nil {
		return err
	}
	return t.shareKubeconfig(raw)
}

// offerAPIs makes kube-apiserver ask cloudcore for metrics.k8s.io and subresources.skerry.io. No
// kube-proxy leads to Services here: these are other names of the cloud's address, and the
// APIServices have the port at which cloudcore listens.
func (t *Trial) offerAPIs(ctx context.Context, cfg *rest.Config) error {
	inputs, err := manifest.Sum(t.root, "manifests")
	if err != nil {
		return err
	}
	return t.record("apis", inputs).Apply(ctx, cfg, t.aggregatedAPIs)
}

func (t *Trial) aggregatedAPIs() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, dir := range []string{"manifests/usage", "manifests/subresources"} {
		objects, err := manifest.Build(filepath.Join(t.root, dir))
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			switch spec, _ := o.Object["spec"].(map[string]any); o.GetName() {
			case "v1alpha1.subresources.skerry.io":
				if to, ok := spec["service"].(map[string]any); ok {
					to["port"] = int64(10006)
				}
			case "cloudcore-usage", "cloudcore-subresources":
				if o.GetKind() == "Service" {
					o.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": lab.Cloud().String()}
				}
			}
		}
		all = append(all, objects...)
	}
	return all, nil
}

func (t *Trial) shareKubeconfig(raw []byte) error {
	for _, name := range t.state.Options.Replicas() {
		if err := t.writeHost(name, cloudcoreKube, raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig makes the administrator's kubeconfig usable on the machine itself.
func (t *Trial) writeKubeconfig() error {
	raw, err := t.readHost(Cloud, filepath.Join(planeDir, "admin.kubeconfig"))
	if err != nil {
		return err
	}
	cfg, err := clientcmd.Load(raw)
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	_, far := lab.MachineLink(t.state.Network)
	for _, c := range cfg.Clusters {
		c.Server = "https://" + far.Addr().String() + ":" + apiPort
	}
	if err := clientcmd.WriteToFile(*cfg, t.Kubeconfig()); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// token makes a token for the nodes that have not joined yet; "" when all have.
func (t *Trial) token(ctx context.Context, nodes []Node) (string, error) {
	uses := 0
	for _, n := range nodes {
		if !n.Plain && !t.machine(n.Name).Joined {
			uses++
		}
	}
	if uses == 0 {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, t.binary("cloudcore"), "token", "create", "--kubeconfig", t.Kubeconfig(), "--uses", strconv.Itoa(uses), "--ttl", "1h",
		"--description", "trial")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("making a join token: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// joinAndStart makes a node a member of the cluster and starts its kubelet.
func (t *Trial) joinAndStart(ctx context.Context, n Node, token string) error {
	if n.Plain {
		return t.startPlain(ctx, n)
	}
	config, err := t.edgecoreFile(n)
	if err != nil {
		return err
	}
	if err := t.writeHost(n.Name, edgecoreConfig, config, 0o644); err != nil {
		return err
	}
	if !t.machine(n.Name).Joined {
		_, err := t.run(n.Name, t.binary("edgecore"), "join", "--config", edgecoreConfig, "--token", token, "--node-name", n.Name, t.server())
		if err != nil {
			return err
		}
		if err := t.change(func(s *State) { s.Hosts[n.Name].Joined = true }); err != nil {
			return err
		}
		t.say(n.Name + " has joined")
	}
	p, err := t.program(n.Name, "edgecore")
	if err != nil {
		return err
	}
	return t.start(ctx, n.Name, p)
}

// startPlain gives an ordinary kubelet a certificate of the cluster's CA and starts it.
func (t *Trial) startPlain(ctx context.Context, n Node) error {
	if _, err := t.readHost(n.Name, kubeletKube); errors.Is(err, os.ErrNotExist) {
		admin, err := t.Admin()
		if err != nil {
			return err
		}
		pki := filepath.Join(t.machine(Cloud).Root(), planeDir, "pki")
		cert, key, err := ca.Client(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"),
			pkix.Name{CommonName: "system:node:" + n.Name, Organization: []string{"system:nodes"}})
		if err != nil {
			return err
		}
		raw, err := kubeconfig("https://"+lab.Cloud().String()+":"+apiPort, admin.CAData, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
		if err != nil {
			return err
		}
		if err := t.writeHost(n.Name, kubeletKube, raw, 0o600); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := t.serveKubelet(n); err != nil {
		return err
	}
	p, err := t.program(n.Name, "kubelet")
	if err != nil {
		return err
	}
	if err := t.start(ctx, n.Name, p); err != nil || !t.state.Options.InCluster {
		return err
	}
	return t.startProxy(ctx, n.Name)
}

// serveKubelet gives an ordinary kubelet the means for exec and logs: a certificate by which
// kube-apiserver verifies it, the CA by which it verifies kube-apiserver, and a way from the cloud
// to its port.
func (t *Trial) serveKubelet(n Node) error {
	pki := filepath.Join(t.machine(Cloud).Root(), planeDir, "pki")
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the cluster's CA: %w", err)
	}
	if err := t.writeHost(n.Name, kubeletCA, authority, 0o644); err != nil {
		return err
	}
	if _, err := t.readHost(n.Name, kubeletCert); errors.Is(err, os.ErrNotExist) {
		cert, key, err := ca.Server(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"),
			pkix.Name{CommonName: "system:node:" + n.Name, Organization: []string{"system:nodes"}}, []string{n.Name}, lab.Uplink(n.Number).Addr())
		if err != nil {
			return err
		}
		if err := t.writeHost(n.Name, kubeletKey, key, 0o600); err != nil {
			return err
		}
		if err := t.writeHost(n.Name, kubeletCert, cert, 0o644); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	config, err := t.kubeletFile(n)
	if err != nil {
		return err
	}
	if err := t.writeHost(n.Name, kubeletConfig, config, 0o644); err != nil {
		return err
	}
	for i, replica := range t.state.Options.Replicas() {
		if err := lab.OfferKubelet(t.machine(router).Host, t.machine(replica).Host, i+1, n.Number); err != nil {
			return err
		}
	}
	return nil
}

// awaitNodes waits until every node that is not cut is Ready, runs its sample pod, and, where it is
// an edge, answers through its link.
func (t *Trial) awaitNodes(ctx context.Context, nodes []Node) error {
	cfg, err := t.Admin()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	waiting := map[string]string{}
	for _, n := range nodes {
		if t.machine(n.Name).Cut == lab.Whole {
			waiting[n.Name] = "it has not registered"
		}
	}
	ready := map[string]bool{}
	err = poll(ctx, nodesTimeout, func(ctx context.Context) (bool, error) {
		if err := t.lookAtNodes(ctx, client, waiting, ready); err != nil {
			return false, err
		}
		if len(waiting) == 0 {
			return true, nil
		}
		var errs []error
		for name, why := range waiting {
			for p, id := range t.machine(name).Processes {
				if !id.Alive() {
					return true, fmt.Errorf("%s on %s ended; end of its log (%s):\n%s", p, name, t.LogPath(name, p), t.logTail(name, p))
				}
			}
			errs = append(errs, fmt.Errorf("node %s: %s", name, why))
		}
		return false, errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("waiting for the nodes: %w", err)
	}
	if t.state.Options.Sample {
		t.say("all nodes are Ready and run the sample application")
	} else {
		t.say("all nodes are Ready")
	}
	return nil
}

// lookAtNodes removes the ready nodes from waiting, and returns the reasons of the others.
func (t *Trial) lookAtNodes(ctx context.Context, client kubernetes.Interface, waiting map[string]string, ready map[string]bool) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(sample.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if _, ok := waiting[n.Name]; !ok {
			continue
		}
		if err := t.putInPool(ctx, client, &n); err != nil {
			return err
		}
		why := nodeReady(&n, t.bootID(n.Name))
		if why == "" {
			if !ready[n.Name] {
				ready[n.Name] = true
				t.say("node " + n.Name + " is Ready")
			}
			if t.state.Options.Sample {
				why = sample.Missing(pods.Items, n.Name, edge(&n), func(id string) bool { return t.containerRuns(n.Name, id) })
			}
		}
		if why == "" && edge(&n) {
			why = kubeletMisses(ctx, client, n.Name, pods.Items)
		}
		if waiting[n.Name] = why; why == "" {
			delete(waiting, n.Name)
		}
	}
	return nil
}

// kubeletMisses returns "" or why an edge's kubelet can't be asked for its pods yet. A node stays
// Ready for a while after its link has gone, and a kubelet that has just started does not know its
// pods: the next command may be one for either.
func kubeletMisses(ctx context.Context, client kubernetes.Interface, node string, pods []corev1.Pod) string {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	raw, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("pods").DoRaw(ctx)
	if err != nil {
		return "its kubelet does not answer through the link: " + err.Error()
	}
	var known corev1.PodList
	if err := json.Unmarshal(raw, &known); err != nil {
		return "its kubelet answers no list of pods: " + err.Error()
	}
	for _, p := range pods {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil && !slices.ContainsFunc(known.Items, func(k corev1.Pod) bool { return k.UID == p.UID }) {
			return "its kubelet does not know the pod " + p.Name
		}
	}
	return ""
}

// edge reports whether edgecore runs a node.
func edge(n *corev1.Node) bool {
	_, ok := n.Labels[v1alpha1.EdgeOwnLabel]
	return ok
}

// putInPool labels an edge that is in no pool, as an administrator does: a node does not
// choose its pool.
func (t *Trial) putInPool(ctx context.Context, client kubernetes.Interface, n *corev1.Node) error {
	if _, in := n.Labels[v1alpha1.NodePoolLabel]; in || !edge(n) {
		return nil
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, v1alpha1.NodePoolLabel, Pool)
	if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("putting node %s into the pool %s: %w", n.Name, Pool, err)
	}
	return nil
}

// bootID names the boot of a running node; "" where it can't be read.
func (t *Trial) bootID(name string) string {
	raw, err := t.readHost(name, "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// containerRuns reports whether containerd on a node keeps a container as one that runs: it has a
// folder for each in /run, which is empty after a boot.
func (t *Trial) containerRuns(name, id string) bool {
	_, err := os.Stat(filepath.Join(t.machine(name).Root(), "/run/containerd/io.containerd.runtime.v2.task/k8s.io", id))
	return err == nil
}

// nodeReady returns "" or why the node is not Ready. A status from a boot before this one is not
// believed.
func nodeReady(n *corev1.Node, boot string) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue && n.Status.NodeInfo.BootID != boot {
				return "it has not reported since it booted"
			}
			if c.Status == corev1.ConditionTrue {
				return ""
			}
			return "it is not Ready: " + c.Message
		}
	}
	return "it has no Ready condition yet"
}
