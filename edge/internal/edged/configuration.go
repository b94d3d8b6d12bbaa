package edged

import (
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"sigs.k8s.io/yaml"
)

// kubeconfig is a path that is never opened: the kubelet only looks whether it is set, and drops
// the clients that it was given where it is not.
const kubeconfig = "/dev/null"

// Validate reports every mistake in a KubeletConfiguration.
func Validate(raw []byte) error {
	kc, gates, err := decode(raw)
	if err != nil {
		return err
	}
	return validate(kc, gates)
}

// unchangedStatusEvery is how often a status of the Node in which nothing but times has changed is
// reported, by default. Whether the kubelet lives is said by its Lease (KEP-589);
// the kubelet's own 5 minutes would be a third of what an idle link carries. What changes is
// reported at once.
const unchangedStatusEvery = time.Hour

// shutdownGrace is how long the kubelet holds up a shutdown of the device for its pods to end
// (KEP-2000), the critical ones in the last part of it. Kubernetes' default is 0: pods would be
// killed without a word by plain `reboot`. On a device without systemd-logind it means nothing.
const (
	shutdownGrace         = 30 * time.Second
	shutdownGraceCritical = 10 * time.Second
)

// newServer makes what the kubelet's own command makes of flags and a file.
func newServer(config Config) (*options.KubeletServer, error) {
	kc, gates, err := decode(config.Kubelet)
	if err != nil {
		return nil, err
	}
	if kc.Logging.Verbosity == 0 {
		kc.Logging.Verbosity = logsapi.VerbosityLevel(config.Verbosity)
	}
	if kc.Authentication.X509.ClientCAFile == "" {
		kc.Authentication.X509.ClientCAFile = config.ClientCAFile
	}
	if kc.TLSCertFile == "" && !sets(config.Kubelet, "serverTLSBootstrap") {
		// By default, a certificate that kube-apiserver can verify: the kubelet's own would be
		// self-signed.
		kc.ServerTLSBootstrap = true
	}
	if len(config.ClusterDNS) > 0 && !sets(config.Kubelet, "clusterDNS") {
		kc.ClusterDNS = config.ClusterDNS
	}
	if config.ClusterDomain != "" && !sets(config.Kubelet, "clusterDomain") {
		kc.ClusterDomain = config.ClusterDomain
	}
	if !sets(config.Kubelet, "nodeStatusReportFrequency") && !sets(config.Kubelet, "nodeStatusUpdateFrequency") {
		kc.NodeStatusReportFrequency.Duration = unchangedStatusEvery
	}
	if !sets(config.Kubelet, "shutdownGracePeriod") && !sets(config.Kubelet, "shutdownGracePeriodCriticalPods") &&
		!sets(config.Kubelet, "shutdownGracePeriodByPodPriority") {
		kc.ShutdownGracePeriod.Duration, kc.ShutdownGracePeriodCriticalPods.Duration = shutdownGrace, shutdownGraceCritical
	}
	if err := validate(kc, gates); err != nil {
		return nil, err
	}
	flags := options.NewKubeletFlags()
	flags.KubeConfig = kubeconfig
	flags.HostnameOverride = config.NodeName
	flags.NodeIP = config.NodeIP
	flags.NodeLabels = maps.Clone(config.Labels)
	if config.RootDir != "" {
		flags.RootDirectory = filepath.Clean(config.RootDir)
		flags.CertDirectory = filepath.Join(flags.RootDirectory, "pki")
	}
	if config.CertDir != "" {
		flags.CertDirectory = config.CertDir
	}
	if err := options.ValidateKubeletFlags(flags); err != nil {
		return nil, fmt.Errorf("modules.edged.labels: %w", err)
	}
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *kc}, nil
}

// sets reports whether a configuration, which was decoded before, has a field at its top.
func sets(raw []byte, field string) bool {
	var fields map[string]any
	if err := yaml.Unmarshal(raw, &fields); err != nil {
		return false
	}
	_, ok := fields[field]
	return ok
}

// decode reads a KubeletConfiguration strictly and fills in the kubelet's defaults. The feature
// gates are those that it sets, in a copy of the process's.
func decode(raw []byte) (*kubeletconfig.KubeletConfiguration, featuregate.FeatureGate, error) {
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return nil, nil, fmt.Errorf("modules.edged.kubelet: %w", err)
	}
	kind := kubeletconfigv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration")
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	o, err := decodeInto(codecs.UniversalDecoder(), raw, kind)
	if err != nil {
		if strict, ok := runtime.AsStrictDecodingError(err); ok {
			return nil, nil, fmt.Errorf("modules.edged.kubelet: %w", strict)
		}
		return nil, nil, fmt.Errorf("modules.edged.kubelet: %w", err)
	}
	kc, ok := o.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return nil, nil, fmt.Errorf("modules.edged.kubelet: this is a %T, not a KubeletConfiguration", o)
	}
	// These defaults depend on the operating system, so the scheme doesn't have them: the kubelet's
	// command does the same.
	if kc.EvictionHard == nil {
		kc.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	} else if kc.MergeDefaultEvictionSettings {
		for signal, threshold := range eviction.DefaultEvictionHard {
			if _, ok := kc.EvictionHard[signal]; !ok {
				kc.EvictionHard[signal] = threshold
			}
		}
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(kc.FeatureGates); err != nil {
		return nil, nil, fmt.Errorf("modules.edged.kubelet.featureGates: %w", err)
	}
	return kc, gates, nil
}

// decodeInto decodes with the kubelet's defaults, which panic over feature gates that they
// don't know.
func decodeInto(decoder runtime.Decoder, raw []byte, kind schema.GroupVersionKind) (o runtime.Object, err error) {
	defer func() {
		if p := recover(); p != nil {
			o, err = nil, fmt.Errorf("%v", p)
		}
	}()
	o, _, err = decoder.Decode(raw, &kind, nil)
	return o, err
}

func validate(kc *kubeletconfig.KubeletConfiguration, gates featuregate.FeatureGate) error {
	if err := validation.ValidateKubeletConfiguration(kc, gates); err != nil {
		return fmt.Errorf("modules.edged.kubelet: %w", err)
	}
	return nil
}
