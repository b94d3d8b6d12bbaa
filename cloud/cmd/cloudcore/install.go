package main

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/internal/config"
	"github.com/skerry-io/skerry/common/cli"
	commonconfig "github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/manifests"
)

type installOptions struct {
	advertise  []string
	image      string
	replicas   int
	classic    bool
	rightsOnly bool
	usage      bool
	endpoint   bool
}

func installCommand() *cobra.Command {
	o := installOptions{image: "skerry/cloudcore:v0.1.0", replicas: 2}
	c := &cobra.Command{
		Use: "install --advertise HOST", Short: "Print the manifests of cloudcore, for kubectl apply", Args: cli.Args(cobra.NoArgs),
		Long: `Print the manifests of cloudcore, for kubectl apply: least rights, the kinds of skerry.io, two replicas.

With --usage cloudcore also answers 'kubectl top' and autoscalers, where no metrics-server does. kube-apiserver must then be told cloudcore's CA, once cloudcore runs:
  kubectl patch apiservice v1beta1.metrics.k8s.io --type merge -p "{\"spec\":{\"caBundle\":\"$(
    kubectl -n skerry-system get secret skerry-ca -o jsonpath='{.data.tls\.crt}')\"}}"

With --kubelet-endpoint 'kubectl logs' and the like reach edge nodes by their names in the DNS, where kube-apiserver can't be given an egress: docs/tunnel.md.`,
		Example: `  cloudcore install --advertise cloud.example.com --image registry.example.com/cloudcore:v0.1.0 | kubectl apply -f -
  cloudcore install --advertise cloud.example.com --usage | kubectl apply -f -     # with kubectl top
  cloudcore install --rights-only | kubectl apply -f -     # cloudcore runs elsewhere, with a kubeconfig of its service account`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return cli.Bad(err)
			}
			out, err := o.render()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().StringSliceVar(&o.advertise, "advertise", nil, "names and addresses under which edges reach cloudcore")
	c.Flags().StringVar(&o.image, "image", o.image, "container image of cloudcore")
	c.Flags().IntVar(&o.replicas, "replicas", o.replicas, "how many replicas")
	c.Flags().BoolVar(&o.classic, "classic", false, "for clusters older than Kubernetes 1.36, without constrained impersonation")
	c.Flags().BoolVar(&o.rightsOnly, "rights-only", false, "only the kinds of skerry.io, the namespace, the account, its rights and the policies")
	c.Flags().BoolVar(&o.usage, "usage", false, "serve metrics.k8s.io too: kubectl top and autoscalers")
	c.Flags().BoolVar(&o.endpoint, "kubelet-endpoint", false, "serve the kubelets by the names of their nodes, for a kube-apiserver without an egress")
	return c
}

func (o installOptions) validate() error {
	if o.rightsOnly && o.endpoint {
		return fmt.Errorf("--kubelet-endpoint is of no use with --rights-only: it is a field of cloudcore.yaml and a Service")
	}
	if !o.rightsOnly && len(o.advertise) == 0 {
		return fmt.Errorf("--advertise is missing: name the hosts under which edges reach cloudcore")
	}
	for _, a := range o.advertise {
		if _, err := netip.ParseAddr(a); err != nil && len(validation.IsDNS1123Subdomain(a)) > 0 {
			return fmt.Errorf("--advertise %q: must be a host name in lower case or an IP address, without a port", a)
		}
	}
	if o.replicas < 1 {
		return fmt.Errorf("--replicas %d: must be at least 1", o.replicas)
	}
	return nil
}

// render builds the kustomization that the flags describe.
func (o installOptions) render() ([]byte, error) {
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
	rights := "../manifests/cloudcore"
	if o.classic {
		rights = "../manifests/classic"
	}
	k := types.Kustomization{
		TypeMeta:  types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind},
		Resources: []string{"../manifests/crds", rights, "../manifests/autonomy"},
	}
	if o.usage {
		k.Resources = append(k.Resources, "../manifests/usage")
	}
	if !o.rightsOnly {
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

func (o installOptions) addDeployment(disk filesys.FileSystem, k *types.Kustomization) error {
	cfg := map[string]any{
		"apiVersion": commonconfig.Version, "kind": config.Kind, "advertise": o.advertise, "health": map[string]any{"listen": ":10003"},
	}
	if o.classic {
		cfg["impersonation"] = "classic"
	}
	if o.usage {
		cfg["usage"] = map[string]any{"listen": ":10005"}
	}
	if o.endpoint {
		cfg["tunnel"] = map[string]any{"endpoint": map[string]any{"listen": ":10250", "hideAddresses": true}}
		k.Resources = append(k.Resources, "../manifests/endpoint")
	}
	raw, err := yaml.Marshal(cfg)
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
		Namespace: "skerry-system", Name: "cloudcore", KvPairSources: types.KvPairSources{FileSources: []string{"cloudcore.yaml"}},
	}}}
	image := types.Image{Name: "cloudcore", NewName: o.image}
	if cut := strings.LastIndex(o.image, ":"); cut > strings.LastIndex(o.image, "/") {
		image.NewName, image.NewTag = o.image[:cut], o.image[cut+1:]
	}
	k.Images = []types.Image{image}
	k.Replicas = []types.Replica{{Name: "cloudcore", Count: int64(o.replicas)}}
	return nil
}
