// Package install renders what `cloudcore install` prints: the manifests, as a few options say.
//
// It owns which part of manifests/ belongs to which option, and the cloudcore.yaml that fits them.
// The Helm chart is made from the same (build/release/chart). It refuses options that contradict
// each other, touches no cluster and keeps nothing: its functions may be called from any goroutine.
package install

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/internal/config"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	commonconfig "github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/manifests"
)

// Options are the flags of `cloudcore install`, and the values of the chart.
type Options struct {
	Advertise  []string // names and addresses under which edges reach cloudcore
	Image      string   // NAME[:TAG][@DIGEST]
	Replicas   int
	RightsOnly bool // the kinds, the namespace, the accounts, their rights and the policies alone
	Usage      bool // metrics.k8s.io
	Console    bool // consoles of virtual machines for the devices that they run on
	Endpoint   bool // the kubelets by the names of their nodes
}

// Validate reports the first option that can't be, in the words of the command's flags.
func (o Options) Validate() error {
	if o.Replicas < 1 {
		return fmt.Errorf("--replicas %d: must be at least 1", o.Replicas)
	}
	if o.RightsOnly {
		if o.Endpoint {
			return fmt.Errorf("--kubelet-endpoint is of no use with --rights-only: it is a field of cloudcore.yaml and a Service")
		}
		return nil
	}
	if len(o.Advertise) == 0 {
		return fmt.Errorf("--advertise is missing: name the hosts under which edges reach cloudcore")
	}
	for _, a := range o.Advertise {
		if _, err := netip.ParseAddr(a); err != nil && len(validation.IsDNS1123Subdomain(a)) > 0 {
			return fmt.Errorf("--advertise %q: must be a host name in lower case or an IP address, without a port", a)
		}
	}
	if o.Image == "" {
		return fmt.Errorf("--image is missing: this build is no release, so no registry has its image")
	}
	return nil
}

// configMap is the base of the name of cloudcore.yaml's ConfigMap. Nothing else may have this
// name: kustomize puts a hash behind it wherever it takes it for a reference, in every
// resourceNames of a Role too.
const configMap = "cloudcore-config"

// Render builds the kustomization that the options describe, as YAML documents.
func Render(o Options) ([]byte, error) {
	disk, err := files()
	if err != nil {
		return nil, err
	}
	k := types.Kustomization{
		TypeMeta:  types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind},
		Resources: []string{"../manifests/crds", "../manifests/cloudcore", "../manifests/autonomy"},
	}
	if o.Usage {
		k.Resources = append(k.Resources, "../manifests/usage")
	}
	if o.Console {
		k.Resources = append(k.Resources, "../manifests/console")
	}
	if !o.RightsOnly {
		if err := o.addDeployment(disk, &k); err != nil {
			return nil, err
		}
	}
	raw, err := yaml.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("writing the kustomization: %w", err)
	}
	if err := disk.WriteFile("/install/kustomization.yaml", raw); err != nil {
		return nil, fmt.Errorf("writing the kustomization: %w", err)
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone // the parts lie beside /install, not below it
	built, err := krusty.MakeKustomizer(options).Run(disk, "/install")
	if err != nil {
		return nil, fmt.Errorf("building the manifests: %w", err)
	}
	return built.AsYaml()
}

// files is the folder of manifests, in memory.
func files() (filesys.FileSystem, error) {
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(manifests.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := manifests.FS.ReadFile(path)
		if err != nil {
			return err
		}
		return disk.WriteFile("/manifests/"+path, data)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	return disk, nil
}

// Config is the cloudcore.yaml of the options, without what is cloudcore's default.
func (o Options) Config() map[string]any {
	cfg := map[string]any{
		"apiVersion": commonconfig.Version, "kind": config.Kind, "advertise": o.Advertise, "health": map[string]any{"listen": ":10003"},
		"subresources": map[string]any{"listen": ":10250"}, // as manifests/subresources has it
		// A port below 1024 is not every container's to open; the Service has 443.
		"devices": map[string]any{"listen": ":10443", "port": 443},
	}
	if o.Usage {
		cfg["usage"] = map[string]any{"listen": ":10005"}
	}
	if o.Endpoint {
		cfg["tunnel"] = map[string]any{"endpoint": map[string]any{"listen": ":10251", "hideAddresses": true}}
	}
	return cfg
}

func (o Options) addDeployment(disk filesys.FileSystem, k *types.Kustomization) error {
	if o.Endpoint {
		k.Resources = append(k.Resources, "../manifests/endpoint")
	}
	k.Resources = append(k.Resources, "../manifests/subresources")
	raw, err := yaml.Marshal(o.Config())
	if err != nil {
		return fmt.Errorf("writing cloudcore.yaml: %w", err)
	}
	if _, err := config.Read("cloudcore.yaml", raw); err != nil {
		return err
	}
	if err := disk.WriteFile("/install/cloudcore.yaml", raw); err != nil {
		return fmt.Errorf("writing cloudcore.yaml: %w", err)
	}
	for _, name := range []string{"approver.yaml", "deployment.yaml", "service.yaml"} {
		k.Resources = append(k.Resources, "../manifests/deployment/"+name)
	}
	k.ConfigMapGenerator = []types.ConfigMapArgs{{GeneratorArgs: types.GeneratorArgs{
		Namespace: v1alpha1.SystemNamespace, Name: configMap, KvPairSources: types.KvPairSources{FileSources: []string{"cloudcore.yaml"}},
	}}}
	k.Images = []types.Image{imageOf(o.Image)}
	k.Replicas = []types.Replica{{Name: "cloudcore", Count: int64(o.Replicas)}}
	return nil
}

// imageOf takes a reference apart: a colon behind the last slash begins a tag, one before
// it a port.
func imageOf(reference string) types.Image {
	image := types.Image{Name: "cloudcore"}
	image.NewName, image.Digest, _ = strings.Cut(reference, "@")
	if cut := strings.LastIndex(image.NewName, ":"); cut > strings.LastIndex(image.NewName, "/") {
		image.NewName, image.NewTag = image.NewName[:cut], image.NewName[cut+1:]
	}
	return image
}
