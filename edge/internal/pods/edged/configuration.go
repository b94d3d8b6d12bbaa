package edged

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// Mistake is one in a KubeletConfiguration.
type Mistake struct {
	Field   string // "authentication.x509.clientCAFile"; "" where it is of no field, or it is not known of which
	Message string
}

// Validate returns every mistake in a KubeletConfiguration.
func Validate(raw []byte) []Mistake {
	kc, gates, wrong := decode(raw)
	if kc == nil {
		return wrong
	}
	return append(wrong, validate(kc, gates, raw)...)
}

// refuse makes an error of mistakes; nil without any.
func refuse(wrong []Mistake) error {
	var errs []error
	for _, m := range wrong {
		at := "modules.edged.kubelet"
		if m.Field != "" {
			at += "." + m.Field
		}
		errs = append(errs, fmt.Errorf("%s: %s", at, m.Message))
	}
	return errors.Join(errs...)
}

// unchangedStatusEvery is the default interval of reports of a Node status in which only times have
// changed. The kubelet's Lease shows that it is alive (KEP-589); the kubelet's own 5 minutes would
// be a third of the traffic of an idle link. Changes are reported at once.
const unchangedStatusEvery = time.Hour

// shutdownGrace is how long a shutdown of the device is held up for containers to end, those of
// critical pods in the last part of it. Kubernetes' default is 0: they would be killed without
// notice by plain `reboot`. On a device without systemd-logind it has no effect. The kubelet itself
// does not get it (takePeriods).
const (
	shutdownGrace         = 30 * time.Second
	shutdownGraceCritical = 10 * time.Second
)

// newServer makes the KubeletServer that the kubelet's own command makes of flags and a file.
func newServer(config Config) (*options.KubeletServer, error) {
	kc, gates, wrong := decode(config.Kubelet)
	if err := refuse(wrong); err != nil {
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
	if kc.EnableSystemLogHandler && !sets(config.Kubelet, "enableSystemLogQuery") {
		// The host's logs, for users who may read nodes/log or nodes/proxy: there is nobody at the
		// device to read its journal.
		kc.EnableSystemLogQuery = true
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
	if err := refuse(validate(kc, gates, config.Kubelet)); err != nil {
		return nil, err
	}
	flags := options.NewKubeletFlags()
	flags.KubeConfig = kubeconfig
	flags.HostnameOverride = config.NodeName
	flags.NodeIP = config.NodeIP
	flags.NodeLabels = maps.Clone(config.Labels)
	flags.ImageCredentialProviderConfigPath = config.ImageCredentialProviderConfig
	flags.ImageCredentialProviderBinDir = config.ImageCredentialProviderBinDir
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
// gates are those that it sets, in a copy of the process's. Invalid fields are left out of both, so
// that the rest can be validated too; the configuration is nil if nothing could be read.
func decode(raw []byte) (*kubeletconfig.KubeletConfiguration, featuregate.FeatureGate, []Mistake) {
	whole := func(err error) []Mistake { return []Mistake{{Message: err.Error()}} }
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return nil, nil, whole(err)
	}
	fields, err := fieldsOf(raw)
	if err != nil {
		return nil, nil, whole(err)
	}
	wrong := dropGates(fields)
	kc, strict, err := decodeFields(codecs.UniversalDecoder(), fields)
	if err != nil { // the first mistake ends it: each field is tried alone
		bad := dropUnreadable(codecs.UniversalDecoder(), fields)
		if kc, strict, err = decodeFields(codecs.UniversalDecoder(), fields); err != nil {
			bad = append(bad, whole(err)...)
		}
		wrong = append(wrong, bad...)
	}
	wrong = append(wrong, strict...)
	if kc == nil {
		return nil, nil, wrong
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
		return nil, nil, append(wrong, Mistake{"featureGates", err.Error()})
	}
	return kc, gates, wrong
}

// fieldsOf are the fields at the top of a configuration in JSON or YAML.
func fieldsOf(raw []byte) (map[string]json.RawMessage, error) {
	if !json.Valid(raw) { // else its numbers stay as they are
		var err error
		if raw, err = yaml.YAMLToJSONStrict(raw); err != nil {
			return nil, err
		}
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, errors.New("is no set of fields")
	}
	if fields == nil { // of null
		fields = map[string]json.RawMessage{}
	}
	return fields, nil
}

// dropGates takes out the feature gates that can't be set, over which the kubelet's defaults panic.
func dropGates(fields map[string]json.RawMessage) (wrong []Mistake) {
	var gates map[string]bool
	if json.Unmarshal(fields["featureGates"], &gates) != nil { // missing, or of a wrong type, which decoding reports
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(map[string]bool{name: gates[name]}); err != nil {
			wrong = append(wrong, Mistake{"featureGates." + name, err.Error()})
			delete(gates, name)
		}
	}
	if len(wrong) > 0 {
		fields["featureGates"], _ = json.Marshal(gates) // of booleans: it has no error
	}
	return wrong
}

// dropUnreadable takes out the fields whose values are of a wrong type.
func dropUnreadable(decoder runtime.Decoder, fields map[string]json.RawMessage) (wrong []Mistake) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name == "apiVersion" || name == "kind" {
			continue
		}
		_, _, err := decodeFields(decoder, map[string]json.RawMessage{name: fields[name]})
		if err == nil {
			continue
		}
		m := Mistake{name, err.Error()}
		if of, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			m.Message = fmt.Sprintf("is a %s; want %s", of.Value, of.Type)
			if strings.HasPrefix(of.Field, name+".") {
				m.Field = of.Field
			}
		}
		wrong = append(wrong, m)
		delete(fields, name)
	}
	return wrong
}

// decodeFields decodes fields; strict are the mistakes that do not prevent decoding.
func decodeFields(decoder runtime.Decoder, fields map[string]json.RawMessage) (kc *kubeletconfig.KubeletConfiguration, strict []Mistake, err error) {
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	o, err := decodeInto(decoder, raw, kubeletconfigv1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"))
	if found, ok := runtime.AsStrictDecodingError(err); ok && o != nil {
		for _, e := range found.Errors() {
			strict = append(strict, strictMistake(e.Error()))
		}
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	kc, ok := o.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return nil, nil, fmt.Errorf("this is a %T, not a KubeletConfiguration", o)
	}
	return kc, strict, nil
}

// strictMistake takes the field out of a decoder's message (`unknown field "maxPod"`).
func strictMistake(text string) Mistake {
	if i := strings.IndexByte(text, '"'); i > 0 {
		if name, err := strconv.Unquote(text[i:]); err == nil {
			return Mistake{name, strings.TrimSpace(text[:i])}
		}
	}
	return Mistake{Message: text}
}

// decodeInto decodes with the kubelet's defaults, which panic on unknown feature gates.
func decodeInto(decoder runtime.Decoder, raw []byte, kind schema.GroupVersionKind) (o runtime.Object, err error) {
	defer func() {
		if p := recover(); p != nil {
			o, err = nil, fmt.Errorf("%v", p)
		}
	}()
	o, _, err = decoder.Decode(raw, &kind, nil)
	return o, err
}

// validate returns the kubelet's objections to a configuration; raw is its original text. The
// version of this machine's cgroups is no mistake in a file: the kubelet waits for another (await),
// and no command that reads the file fails.
func validate(kc *kubeletconfig.KubeletConfiguration, gates featuregate.FeatureGate, raw []byte) (wrong []Mistake) {
	fail := kc.FailCgroupV1
	kc.FailCgroupV1 = false
	err := validation.ValidateKubeletConfiguration(kc, gates)
	kc.FailCgroupV1 = fail
	if err == nil {
		return nil
	}
	all := []error{err}
	if several, ok := err.(utilerrors.Aggregate); ok {
		all = utilerrors.Flatten(several).Errors()
	}
	fields, _ := fieldsOf(raw) // it was read before
	for _, e := range all {
		if at, ok := errors.AsType[*field.Error](e); ok {
			wrong = append(wrong, Mistake{at.Field, at.ErrorBody()})
			continue
		}
		text := strings.TrimPrefix(e.Error(), "invalid configuration: ")
		wrong = append(wrong, Mistake{named(text, fields), text})
	}
	return wrong
}

// named is the first field that was written and that a message of the kubelet names; "" if it names
// no field.
func named(text string, fields map[string]json.RawMessage) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, word := range words {
		word = strings.Trim(word, ".")
		top, _, _ := strings.Cut(word, ".")
		if _, written := fields[top]; written {
			return word
		}
	}
	return ""
}
