package rehearsal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/dependency"
)

// device is one on which a pod of all kinds of needs runs.
func device() (Facts, *corev1.Pod) {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: "edge1", ServiceAccountName: "default", RestartPolicy: corev1.RestartPolicyAlways, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			Containers: []corev1.Container{{
				Name: "till", Image: "registry.example/till:1", ImagePullPolicy: corev1.PullIfNotPresent,
				Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/scanner": resource.MustParse("1"), "cpu": resource.MustParse("1")}},
				EnvFrom:      []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "maybe"}, Optional: &yes}}},
				Env:          []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "password"}}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "config"}, {Name: "secret"}, {Name: "models"}, {Name: "token"}}, VolumeDevices: []corev1.VolumeDevice{{Name: "disk"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: []corev1.KeyToPath{{Key: "logo"}}}}},
				{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}},
				{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}},
				{Name: "models", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example/models:1", PullPolicy: corev1.PullIfNotPresent}}},
				{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", Path: "t"}},
				}}}},
			},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new(string)}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	*p.Spec.ResourceClaims[0].ResourceClaimName = "gpu"
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{Namespace: "shop", Name: "disk"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example", VolumeHandle: "h"}},
	}}
	attachment := dependency.AttachmentName("hcsi.example", "edge1")
	held := map[dependency.Ref]runtime.Object{
		{Resource: dependency.ConfigMaps, Namespace: "shop", Name: "settings"}:     &corev1.ConfigMap{BinaryData: map[string][]byte{"logo": nil}},
		{Resource: dependency.Secrets, Namespace: "shop", Name: "keys"}:            &corev1.Secret{Data: map[string][]byte{"password": nil}},
		{Resource: dependency.Secrets, Namespace: "shop", Name: "pull"}:            &corev1.Secret{ObjectMeta: metav1.ObjectMeta{UID: "pull-uid"}},
		{Resource: dependency.Claims, Namespace: "shop", Name: "disk"}:             &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		{Resource: dependency.Volumes, Name: "pv"}:                                 pv,
		{Resource: dependency.Attachments, Name: attachment}:                       &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}},
		{Resource: dependency.ResourceClaims, Namespace: "shop", Name: "gpu"}:      &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}, ReservedFor: []resourcev1.ResourceClaimConsumerReference{{UID: "u"}}}},
		{Resource: dependency.ServiceAccounts, Namespace: "shop", Name: "default"}: &corev1.ServiceAccount{},
	}
	return Facts{
		Node: "edge1", Pods: []*corev1.Pod{p}, Sandbox: "pause:1", Addressed: true,
		Images: []Image{{ID: "sha256:1", Names: []string{normal("pause:1")}}, {ID: "sha256:2", Names: []string{"registry.example/till:1"}}, {ID: "sha256:3", Names: []string{"registry.example/models:1"}}},
		Pulled: map[string]Pulled{"sha256:2": {Images: map[string]Access{"registry.example/till": {Secrets: []types.UID{"pull-uid"}}}}},
		Held:   func(r dependency.Ref) runtime.Object { return held[r] },
		HasToken: func(_, _ string, spec authenticationv1.TokenRequestSpec) bool {
			return len(spec.Audiences) == 1 && spec.BoundObjectRef.UID == "u"
		},

		Allocatable: corev1.ResourceList{"example.com/scanner": resource.MustParse("1")},
	}, p
}

// held is an object of the device.
func held[T runtime.Object](f *Facts, name string) T {
	for _, r := range append(dependency.Resources(), csiDrivers) {
		for _, namespace := range []string{"", "shop"} {
			if o, ok := f.Held(dependency.Ref{Resource: r, Namespace: namespace, Name: name}).(T); ok {
				return o
			}
		}
	}
	panic("the device does not hold " + name)
}

// fromConfig has a container get a key in its environment.
func fromConfig(p *corev1.Pod, name, key string, optional bool) {
	c := &p.Spec.Containers[0]
	c.Env = append(c.Env, corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}})
}

func hostIP(p *corev1.Pod) {
	p.Spec.Containers[0].Env = []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}}
}

// Each cause on its own; healthy pods have no cause.
func TestOperate_10_EachCause(t *testing.T) {
	without := func(f *Facts, resources ...string) {
		held := f.Held
		f.Held = func(r dependency.Ref) runtime.Object {
			if slices.Contains(resources, r.Resource.Resource) {
				return nil
			}
			return held(r)
		}
	}
	for name, c := range map[string]struct {
		spoil func(f *Facts, p *corev1.Pod)
		want  []Reason
		all   []Reason // of the whole device
	}{
		"healthy":      {func(*Facts, *corev1.Pod) {}, nil, nil},
		"image":        {func(f *Facts, _ *corev1.Pod) { f.Images = append(f.Images[:1:1], f.Images[2]) }, []Reason{ImageMissing}, nil},
		"image volume": {func(f *Facts, _ *corev1.Pod) { f.Images = f.Images[:2] }, []Reason{ImageMissing}, nil},
		"pull policy":  {func(_ *Facts, p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways }, []Reason{PullAlways}, nil},
		"pull policy, it has run": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, ImageID: "sha256:2"})
		}, nil, nil},
		"other credentials": {func(_ *Facts, p *corev1.Pod) { p.Spec.ImagePullSecrets = nil }, []Reason{Credentials}, nil},
		"other credentials, it has run": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.ImagePullSecrets = nil
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "till", ImageID: "sha256:2"}}
		}, nil, nil},
		"other credentials, never pulled": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.ImagePullSecrets, p.Spec.Containers[0].ImagePullPolicy = nil, corev1.PullNever
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "till", ImageID: "sha256:2"}}
		}, []Reason{Credentials}, nil},
		"preloaded": {func(f *Facts, _ *corev1.Pod) { f.Pulled, f.VerifyPreloaded = nil, true }, []Reason{Credentials, Credentials}, nil},
		"pulled by all": {func(f *Facts, p *corev1.Pod) {
			f.Pulled["sha256:2"].Images["registry.example/till"] = Access{Everybody: true}
			p.Spec.ImagePullSecrets = nil
		}, nil, nil},
		"ConfigMap":     {func(f *Facts, _ *corev1.Pod) { without(f, "configmaps") }, []Reason{ObjectMissing}, nil},
		"claim":         {func(f *Facts, _ *corev1.Pod) { without(f, "persistentvolumeclaims") }, []Reason{ObjectMissing}, nil},
		"volume":        {func(f *Facts, _ *corev1.Pod) { without(f, "persistentvolumes") }, []Reason{ObjectMissing}, nil},
		"attachment":    {func(f *Facts, _ *corev1.Pod) { without(f, "volumeattachments") }, []Reason{NotAttached}, nil},
		"ResourceClaim": {func(f *Facts, _ *corev1.Pod) { without(f, "resourceclaims") }, []Reason{ObjectMissing}, nil},
		"Secrets":       {func(f *Facts, _ *corev1.Pod) { without(f, "secrets") }, []Reason{Credentials, ObjectMissing}, nil},
		"device plugin": {func(f *Facts, _ *corev1.Pod) { f.Allocatable["example.com/scanner"] = resource.Quantity{} }, []Reason{DevicePlugin}, nil},
		"token": {func(f *Facts, _ *corev1.Pod) {
			f.HasToken = func(string, string, authenticationv1.TokenRequestSpec) bool { return false }
		}, []Reason{Token}, nil},
		"pod certificate": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "cert", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{}}}}}})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "cert"})
		}, []Reason{PodCertificate}, nil},
		"no address":          {func(f *Facts, p *corev1.Pod) { f.Addressed = false; hostIP(p) }, []Reason{NoDefaultRoute}, nil},
		"no address, no need": {func(f *Facts, p *corev1.Pod) { f.Addressed = false; p.Spec.HostNetwork = true }, nil, nil},
		"once": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "c"}}
		}, []Reason{EndsAtBoot}, nil},
		"once, that has not begun": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{}}
		}, nil, nil},
		"a key of a Secret":         {func(f *Facts, _ *corev1.Pod) { held[*corev1.Secret](f, "keys").Data = nil }, []Reason{ObjectMissing}, nil},
		"a key of a ConfigMap":      {func(f *Facts, _ *corev1.Pod) { held[*corev1.ConfigMap](f, "settings").BinaryData = nil }, []Reason{ObjectMissing}, nil},
		"binary in the environment": {func(_ *Facts, p *corev1.Pod) { fromConfig(p, "settings", "logo", false) }, []Reason{ObjectMissing}, nil},
		"an optional key":           {func(_ *Facts, p *corev1.Pod) { fromConfig(p, "settings", "none", true) }, nil, nil},
		"optional and required":     {func(_ *Facts, p *corev1.Pod) { fromConfig(p, "maybe", "a", false); fromConfig(p, "maybe", "b", true) }, []Reason{ObjectMissing}, nil},
		"nothing mounted": {func(f *Facts, p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, nil
			f.Images, f.HasToken = f.Images[:2], func(string, string, authenticationv1.TokenRequestSpec) bool { return false }
			without(f, "configmaps", "persistentvolumeclaims")
		}, nil, nil},
		"mounted by a debugger": {func(f *Facts, p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: c.VolumeMounts}}}
			c.VolumeMounts = nil
			without(f, "configmaps")
		}, []Reason{ObjectMissing}, nil},
		"an unbound claim": {func(f *Facts, _ *corev1.Pod) {
			held[*corev1.PersistentVolumeClaim](f, "disk").Status.Phase = corev1.ClaimPending
		}, []Reason{NotBound}, nil},
		"an unbound volume": {func(f *Facts, _ *corev1.Pod) { held[*corev1.PersistentVolume](f, "pv").Spec.ClaimRef = nil }, []Reason{NotBound}, nil},
		"a deleted claim": {func(f *Facts, _ *corev1.Pod) {
			held[*corev1.PersistentVolumeClaim](f, "disk").DeletionTimestamp = &metav1.Time{}
		}, []Reason{NotBound}, nil},
		"a protected claim": {func(f *Facts, _ *corev1.Pod) {
			c := held[*corev1.PersistentVolumeClaim](f, "disk")
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{}, []string{"kubernetes.io/pvc-protection"}
		}, nil, nil},
		"without attachments": {func(f *Facts, _ *corev1.Pod) {
			without(f, "volumeattachments")
			others := f.Held
			f.Held = func(r dependency.Ref) runtime.Object {
				if r.Resource.Resource == "csidrivers" && r.Name == "csi.example" {
					return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(bool)}}
				}
				return others(r)
			}
		}, nil, nil},
		"not attached": {func(f *Facts, _ *corev1.Pod) {
			held[*storagev1.VolumeAttachment](f, dependency.AttachmentName("hcsi.example", "edge1")).Status.Attached = false
		}, []Reason{NotAttached}, nil},
		"unallocated": {func(f *Facts, _ *corev1.Pod) { held[*resourcev1.ResourceClaim](f, "gpu").Status.Allocation = nil }, []Reason{ResourceClaim}, nil},
		"another's claim": {func(f *Facts, _ *corev1.Pod) {
			held[*resourcev1.ResourceClaim](f, "gpu").Status.ReservedFor[0].UID = "v"
		}, []Reason{ResourceClaim}, nil},
		"a claim to be made": {func(_ *Facts, p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new(string)}}
		}, []Reason{ResourceClaim}, nil},
		"a resource of no plugin": {func(f *Facts, _ *corev1.Pod) { f.Allocatable = nil }, nil, nil},
		"ended":                   {func(_ *Facts, p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }, []Reason{EndedPod}, nil},
		"runs again": {func(f *Facts, p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			f.Again = map[types.UID]bool{"u": true}
		}, nil, nil},
		"singleton":        {func(f *Facts, _ *corev1.Pod) { f.HeldAtBoot = map[types.UID]bool{"u": true} }, []Reason{HeldAtBoot}, nil},
		"withheld":         {func(f *Facts, _ *corev1.Pod) { f.Withheld = map[types.UID]string{"u": "x"} }, []Reason{Withheld}, nil},
		"sandbox image":    {func(f *Facts, _ *corev1.Pod) { f.Images = f.Images[1:] }, nil, []Reason{SandboxImage}},
		"sandbox restored": {func(f *Facts, _ *corev1.Pod) { f.Images, f.Restored = f.Images[1:], true }, nil, nil},
		"unsynced":         {func(f *Facts, _ *corev1.Pod) { f.Unsynced = []string{"pods spec.nodeName=edge1"} }, nil, []Reason{InterestUnsynced}},
		"unknown":          {func(f *Facts, _ *corev1.Pod) { f.Unknown = []string{"the images can't be read"} }, nil, []Reason{Unknown}},
		"no list of images": {func(f *Facts, p *corev1.Pod) {
			f.Images, f.NoImages, f.Unknown = nil, true, []string{"the images can't be read"}
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "registry.example/new:1", ImagePullPolicy: corev1.PullAlways}}
		}, []Reason{PullAlways}, []Reason{Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := device()
			c.spoil(&f, p)
			r := Of(f)
			reasons := func(causes []Cause) (all []Reason) {
				for _, c := range causes {
					if c.Message == "" || c.Action == "" {
						t.Errorf("%s has no words", c.Reason)
					}
					all = append(all, c.Reason)
				}
				return all
			}
			if got := reasons(r.Pods[0].Causes); !cmp.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			if got := reasons(r.Device); !cmp.Equal(got, c.all) {
				t.Errorf("of the device %v, want %v", got, c.all)
			}
			if fine := c.want == nil && c.all == nil; r.Fine() != fine || (r.Runs == 1) != fine {
				t.Errorf("fine %v, %d run", r.Fine(), r.Runs)
			}
		})
	}
}

func TestPulled(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sha256-1": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1","imageRef":"sha256:2","credentialMapping":{"till":{"kubernetesSecrets":[{"uid":"a"}]},"open":{"nodePodsAccessible":true}}}`,
		"sha256-2": `half of o`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := pulled(dir)
	want := map[string]Pulled{"sha256:2": {Images: map[string]Access{untagged("till"): {Secrets: []types.UID{"a"}}, untagged("open"): {Everybody: true}}}}
	if err != nil || !cmp.Equal(got, want) {
		t.Error(err, cmp.Diff(want, got))
	}
	if got, err := pulled(filepath.Join(dir, "none")); got != nil || err != nil {
		t.Error(got, err)
	}
}

func TestDefaultRoute(t *testing.T) {
	for name, c := range map[string]struct {
		four, six string
		want      bool
	}{
		"none":  {"Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\neth0 0000FEA9 00000000 0001 0 0 0 0000FFFF 0\n", "", false},
		"four":  {"eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n", "", true},
		"six":   {"", "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe80 00000400 1 0 00000003 eth0\n", true},
		"of lo": {"", "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000 ffffffff 1 0 00200200 lo\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, "proc/net"), 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"route": c.four, "ipv6_route": c.six} {
				if err := os.WriteFile(filepath.Join(root, "proc/net", file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := defaultRoute(root); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"imageRef":"sha256:2","credentialMapping":{"till":{"kubernetesSecrets":[{"uid":"a"}]}}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) { parseRecord(raw) })
}
