package rehearsal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilnode "k8s.io/kubernetes/pkg/util/node"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/dependency"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// Source has the objects that the device holds; a *metamanager.Manager.
type Source interface {
	List(ctx context.Context, s object.Selection, options metamanager.ListOptions) (items []object.Object, version uint64, err error)
	Status() metamanager.Status
	HoldsToken(namespace, serviceAccount string, spec authenticationv1.TokenRequestSpec) bool
}

// Config configures Read.
type Config struct {
	Node   string
	Source Source
	// Images is the endpoint of the container runtime's images.
	Images string
	// Sandbox asks for the image of sandboxes; Archive has it in a file; "": there is no file.
	Sandbox func(ctx context.Context) (string, error)
	Archive string
	// RootDir is the kubelet's, Policy its imagePullCredentialsVerificationPolicy.
	RootDir, Policy string
	// NodeIP is the configured address of the Node; "": the kubelet chooses.
	NodeIP string
	// Root is "/", but in tests.
	Root string
}

// Read asks for the facts and makes the report.
func Read(ctx context.Context, c Config) Report {
	f := Facts{Node: c.Node, HasToken: c.Source.HoldsToken, HeldAtBoot: map[types.UID]bool{}, Again: map[types.UID]bool{}, Withheld: map[types.UID]string{}}
	unknown := func(what string, err error) {
		if err != nil {
			f.Unknown = append(f.Unknown, fmt.Sprintf("%s can't be read: %v", what, err))
		}
	}
	list := func(resource schema.GroupVersionResource, namespace, field, value string) ([]runtime.Object, error) {
		items, _, err := c.Source.List(ctx, object.Selection{
			Resource: resource, Namespace: namespace, Labels: labels.Everything(), Fields: fields.OneTermEqualSelector(field, value),
		}, metamanager.ListOptions{Held: true})
		var all []runtime.Object
		for _, o := range items {
			if decoded, err := object.Decode(o); err == nil {
				all = append(all, decoded)
			}
		}
		return all, err
	}
	f.Held = func(ref dependency.Ref) runtime.Object {
		if all, err := list(ref.Resource, ref.Namespace, "metadata.name", ref.Name); err == nil && len(all) == 1 {
			return all[0]
		}
		return nil
	}
	pods, err := list(corev1.SchemeGroupVersion.WithResource("pods"), "", "spec.nodeName", c.Node)
	unknown("the pods of this device", err)
	for _, o := range pods {
		if p, ok := o.(*corev1.Pod); ok {
			f.Pods = append(f.Pods, p)
			f.HeldAtBoot[p.UID] = p.Annotations[v1alpha1.EdgeAppHeldAtBoot] == "true"
		}
	}
	nodes, err := list(corev1.SchemeGroupVersion.WithResource("nodes"), "", "metadata.name", c.Node)
	unknown("the Node", err)
	f.Addressed = err != nil
	for _, o := range nodes {
		if n, ok := o.(*corev1.Node); ok {
			f.Allocatable = n.Status.Allocatable
			_, err := utilnode.GetNodeHostIPs(n)
			f.Addressed = err == nil
		}
	}
	status := c.Source.Status()
	for _, w := range status.Withheld {
		f.Withheld[w.UID] = w.Reason
	}
	for _, again := range status.Restarts {
		f.Again[again.UID] = true
		delete(f.Withheld, again.UID)
	}
	for _, set := range status.Interests {
		if resource, _, _ := strings.Cut(set.Set, " "); !set.Synced && set.Refused == "" && set.Watchers > 0 && slices.Contains([]string{"pods", "nodes", "services"}, resource) {
			f.Unsynced = append(f.Unsynced, set.Set)
		}
	}
	f.Images, err = imagesOf(ctx, c.Images)
	unknown("the container runtime's images", err)
	f.NoImages = err != nil
	if f.Sandbox, err = c.Sandbox(ctx); err != nil {
		f.Sandbox = "" // some runtimes don't report it
	}
	if c.Archive != "" {
		_, err := os.Stat(c.Archive)
		f.Restored = err == nil
	}
	f.VerifyPreloaded = c.Policy == "AlwaysVerify"
	if c.Policy != "NeverVerify" {
		f.Pulled, err = pulled(filepath.Join(c.RootDir, "image_manager", "pulled"))
		unknown("the kubelet's records of images", err)
	}
	f.Addressed = f.Addressed || c.NodeIP != "" || defaultRoute(c.Root)
	return Of(f)
}

func imagesOf(ctx context.Context, endpoint string) (all []Image, err error) {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := runtimev1.NewImageServiceClient(conn).ListImages(ctx, &runtimev1.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	for _, i := range answer.Images {
		all = append(all, Image{ID: i.Id, Names: append(slices.Clone(i.RepoTags), i.RepoDigests...)})
	}
	return all, nil
}

// pulled reads the kubelet's records (pkg/kubelet/images/pullmanager).
func pulled(dir string) (map[string]Pulled, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]Pulled{}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // it is removed with its image
		}
		ref, record, ok := parseRecord(raw)
		if ok {
			all[ref] = record
		}
	}
	return all, nil
}

func parseRecord(raw []byte) (imageRef string, p Pulled, ok bool) {
	var record struct {
		ImageRef          string `json:"imageRef"`
		CredentialMapping map[string]struct {
			NodePodsAccessible        bool                      `json:"nodePodsAccessible"`
			KubernetesSecrets         []struct{ UID types.UID } `json:"kubernetesSecrets"`
			KubernetesServiceAccounts []struct{ UID types.UID } `json:"kubernetesServiceAccounts"`
		} `json:"credentialMapping"`
	}
	if json.Unmarshal(raw, &record) != nil || record.ImageRef == "" {
		return "", Pulled{}, false
	}
	p.Images = map[string]Access{}
	for name, by := range record.CredentialMapping {
		a := Access{Everybody: by.NodePodsAccessible}
		for _, s := range by.KubernetesSecrets {
			a.Secrets = append(a.Secrets, s.UID)
		}
		for _, s := range by.KubernetesServiceAccounts {
			a.ServiceAccounts = append(a.ServiceAccounts, s.UID)
		}
		p.Images[untagged(name)] = a
	}
	return record.ImageRef, p, true
}

// defaultRoute reports whether the kernel has one, of either family (proc(5), /proc/net/route).
func defaultRoute(root string) bool {
	four, _ := os.ReadFile(filepath.Join(root, "proc/net/route"))
	for lines := bufio.NewScanner(bytes.NewReader(four)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return true
		}
	}
	six, _ := os.ReadFile(filepath.Join(root, "proc/net/ipv6_route"))
	for lines := bufio.NewScanner(bytes.NewReader(six)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 9 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[9] != "lo" {
			return true
		}
	}
	return false
}
