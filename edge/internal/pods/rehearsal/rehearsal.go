// Package rehearsal predicts the pods of a device that rebooted now, without a link to the cloud:
// which would run again, and which would not, why, and the remedy.
//
// It owns the causes. It does not try anything: it reads the cached objects, the container
// runtime's images and the kubelet's records. Unreadable data is a problem of its own in the
// report, never a healthy pod. Of is pure; Read asks. Both are stateless.
package rehearsal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"

	"github.com/skerry-io/skerry/common/dependency"
)

var csiDrivers = storagev1.SchemeGroupVersion.WithResource("csidrivers")

// Reason is a cause in one word.
type Reason string

// The causes.
const (
	SandboxImage     Reason = "SandboxImageMissing"
	ImageMissing     Reason = "ImageNotHeld"
	PullAlways       Reason = "ImagePullPolicyAlways"
	Credentials      Reason = "ImageCredentialsUnverified"
	ObjectMissing    Reason = "ObjectNotHeld"
	NotBound         Reason = "VolumeNotBound"
	NotAttached      Reason = "VolumeNotAttached"
	DevicePlugin     Reason = "DevicePluginMissing"
	ResourceClaim    Reason = "ResourceClaimUnallocated"
	PodCertificate   Reason = "PodCertificate"
	Token            Reason = "TokenNotHeld"
	NoDefaultRoute   Reason = "NoDefaultRoute"
	EndedPod         Reason = "PodHasEnded"
	EndsAtBoot       Reason = "RestartPolicyNever"
	Withheld         Reason = "PodWithheld"
	HeldAtBoot       Reason = "WaitsForCloudAtBoot"
	InterestUnsynced Reason = "NotSynced"
	Unknown          Reason = "NotKnown"
)

// Cause is why a pod, or all of them, would not run.
type Cause struct {
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
	Action  string `json:"action"` // a remedy, before the reboot
}

// Pod is a pod after the reboot.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Causes    []Cause   `json:"causes,omitempty"` // empty: it would run
}

// Report is the prediction.
type Report struct {
	Node   string  `json:"node"`
	Runs   int     `json:"runs"`
	Device []Cause `json:"device,omitempty"` // of all pods
	Pods   []Pod   `json:"pods"`
}

// Fine reports whether every pod would run.
func (r Report) Fine() bool {
	return len(r.Device) == 0 && !slices.ContainsFunc(r.Pods, func(p Pod) bool { return len(p.Causes) > 0 })
}

// Image is one that the container runtime has.
type Image struct {
	ID    string
	Names []string // tags and digests, in full
}

// Facts are the input of a report.
type Facts struct {
	Node string
	Pods []*corev1.Pod
	// Runs again: pods that have ended and that this device runs again by itself.
	Again map[types.UID]bool
	// Withheld are pods that the kubelet is not shown, and why; HeldAtBoot those that wait for the
	// cloud after each boot.
	Withheld   map[types.UID]string
	HeldAtBoot map[types.UID]bool

	Images []Image
	// NoImages: the container runtime does not list its images, which Unknown names.
	NoImages bool
	// Sandbox is the image of sandboxes; "": the runtime does not report it. Restored: it can be
	// restored from a file.
	Sandbox  string
	Restored bool
	// Pulled are the kubelet's records of images that it pulled, by image ID: which Secrets of pods
	// may use them.
	Pulled map[string]Pulled
	// VerifyPreloaded: also images that the kubelet did not pull need credentials.
	VerifyPreloaded bool

	// Held returns an object as the device holds it; nil: it holds no such object.
	Held func(dependency.Ref) runtime.Object
	// HasToken reports whether a token for a pod is kept.
	HasToken func(namespace, serviceAccount string, spec authenticationv1.TokenRequestSpec) bool
	// Allocatable are the resources of the Node.
	Allocatable corev1.ResourceList
	// Addressed reports whether the kubelet knows an address of the Node after a boot: one that the
	// Node has stays, and one that the configuration or the default route names is found again.
	Addressed bool
	// Unsynced are the sets that the kubelet needs and that have not arrived whole.
	Unsynced []string
	// Unknown names the facts that could not be read.
	Unknown []string
}

// Pulled is whose credentials an image was pulled by.
type Pulled struct {
	// Images are the names without tag, with the pods that may use it by that name.
	Images map[string]Access
}

// Access defines which pods may use an image without asking the registry.
type Access struct {
	Everybody       bool
	Secrets         []types.UID
	ServiceAccounts []types.UID
}

// Of makes the report.
func Of(f Facts) Report {
	r := Report{Node: f.Node, Device: f.device()}
	for _, p := range f.Pods {
		if p.DeletionTimestamp != nil || terminal(p) && p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
			continue // it is being deleted, or has completed
		}
		pod := Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Causes: f.pod(p)}
		if len(pod.Causes) == 0 && len(r.Device) == 0 {
			r.Runs++
		}
		r.Pods = append(r.Pods, pod)
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(min(1, len(b.Causes)), min(1, len(a.Causes))), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return r
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// device are the causes that keep every pod from running.
func (f Facts) device() (causes []Cause) {
	if f.Sandbox != "" && !f.Restored && !f.NoImages && f.image(f.Sandbox) == nil {
		causes = append(causes, Cause{SandboxImage, "the image of sandboxes " + f.Sandbox + " is not on the device", "crictl pull " + f.Sandbox + " while there is a way to the registry, or set modules.edged.sandboxImageArchive"})
	}
	for _, set := range f.Unsynced {
		causes = append(causes, Cause{InterestUnsynced, "the device does not hold all of its " + set + " yet", "wait for the link; `edgecore status` shows it"})
	}
	for _, what := range f.Unknown {
		causes = append(causes, Cause{Unknown, what, "`edgecore status` shows what is wrong here"})
	}
	return causes
}

func (f Facts) pod(p *corev1.Pod) (causes []Cause) {
	if terminal(p) && !f.Again[p.UID] {
		return []Cause{{EndedPod, fmt.Sprintf("it has ended (%s) and is not started again without the cloud", cmp.Or(p.Status.Reason, string(p.Status.Phase))), "delete it in the cloud, so that its controller makes another"}}
	}
	if reason := f.Withheld[p.UID]; reason != "" {
		causes = append(causes, Cause{Withheld, "the kubelet is not shown it: " + reason, "see `edgecore status`"})
	}
	if f.HeldAtBoot[p.UID] {
		causes = append(causes, Cause{HeldAtBoot, "it waits after each boot until the cloud has confirmed it (a singleton)", "failover.offlineStart of its EdgeApp"})
	}
	if started(p) && p.Spec.RestartPolicy == corev1.RestartPolicyNever {
		causes = append(causes, Cause{EndsAtBoot, "its containers end with the boot, and its restartPolicy starts none again", "restartPolicy: Always or OnFailure, for a pod that is to run after a boot"})
	}
	p = mounted(p)
	causes = append(causes, f.images(p)...)
	causes = append(causes, f.objects(p)...)
	causes = append(causes, f.keys(p)...)
	causes = append(causes, f.resources(p)...)
	causes = append(causes, f.projections(p)...)
	if !f.Addressed && wantsHostIP(p) {
		causes = append(causes, Cause{NoDefaultRoute, "the Node has no address, and the device no default route to find one by, and a container has it in its environment", "set modules.edged.nodeIP, or add a default route that a boot restores"})
	}
	return causes
}

// started reports whether a container of the pod was started once: the kubelet starts those of
// others whatever the restart policy (computePodActions).
func started(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool { return c.ContainerID != "" })
}

// mounted is the pod without the volumes that no container has: the kubelet neither mounts nor
// waits for those (pkg/volume/util, GetPodVolumeNames).
func mounted(p *corev1.Pod) *corev1.Pod {
	mounts, devices, _ := volumeutil.GetPodVolumeNames(p, false)
	used := mounts.Union(devices)
	of := *p
	of.Spec.Volumes = slices.DeleteFunc(slices.Clone(p.Spec.Volumes), func(v corev1.Volume) bool { return !used.Has(v.Name) })
	return &of
}

// containers returns the containers that run after a boot, preceded by their init containers.
func containers(p *corev1.Pod) []corev1.Container {
	return append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...)
}

func (f Facts) images(p *corev1.Pod) (causes []Cause) {
	type use struct {
		image, by string
		policy    corev1.PullPolicy
	}
	var uses []use
	for _, c := range containers(p) {
		uses = append(uses, use{c.Image, "container " + c.Name, c.ImagePullPolicy})
	}
	for _, v := range p.Spec.Volumes {
		if v.Image != nil {
			uses = append(uses, use{v.Image.Reference, "volume " + v.Name, v.Image.PullPolicy})
		}
	}
	seen := map[use]bool{}
	ran := ranWith(p)
	for _, u := range uses {
		key := use{u.image, "", u.policy}
		if u.image == "" || seen[key] {
			continue
		}
		seen[key] = true
		have := f.image(u.image)
		switch {
		case u.policy == corev1.PullAlways && !ran[u.image]:
			causes = append(causes, Cause{PullAlways, fmt.Sprintf("%s pulls %s at each start, and no registry is in reach", u.by, u.image), "imagePullPolicy: IfNotPresent"})
		case f.NoImages:
		case have == nil:
			causes = append(causes, Cause{ImageMissing, fmt.Sprintf("the image %s of %s is not on the device", u.image, u.by), "crictl pull " + u.image + " while there is a way to the registry"})
		case u.policy != corev1.PullNever && ran[u.image]: // edgecore gives it without a link, whatever its credentials
		case !f.mayUse(p, u.image, have):
			causes = append(causes, Cause{Credentials, fmt.Sprintf("the kubelet verifies the credentials for %s again, for which it asks the registry", u.image),
				"use one of the imagePullSecrets that it was pulled with, or let the pod start once with a link"})
		}
	}
	return causes
}

// ranWith are the images with which the pod has run. If the kubelet pulls them again, it gets them
// without a link too (edge/internal/pods/images, Used).
func ranWith(p *corev1.Pod) map[string]bool {
	ran := map[string]bool{}
	for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		for _, c := range containers(p) {
			if c.Name == status.Name && status.ImageID != "" {
				ran[c.Image] = true
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Image != nil && len(ran) > 0 {
			ran[v.Image.Reference] = true
		}
	}
	return ran
}

// image finds an image by a name in a pod.
func (f Facts) image(name string) *Image {
	full := normal(name)
	for i := range f.Images {
		if f.Images[i].ID == name || slices.ContainsFunc(f.Images[i].Names, func(n string) bool { return normal(n) == full }) {
			return &f.Images[i]
		}
	}
	return nil
}

// normal is a name in full, as runtimes list it.
func normal(name string) string {
	n, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return n.String()
}

// mayUse reports whether the kubelet allows a pod an image without asking the registry (KEP-2535).
func (f Facts) mayUse(p *corev1.Pod, name string, have *Image) bool {
	record, pulled := f.Pulled[have.ID]
	if !pulled {
		return !f.VerifyPreloaded
	}
	access, ok := record.Images[untagged(name)]
	if !ok {
		return false
	}
	if access.Everybody {
		return true
	}
	for _, s := range p.Spec.ImagePullSecrets {
		o, ok := f.Held(dependency.Ref{Resource: dependency.Secrets, Namespace: p.Namespace, Name: s.Name}).(*corev1.Secret)
		if ok && slices.Contains(access.Secrets, o.UID) {
			return true
		}
	}
	o, ok := f.Held(dependency.Ref{Resource: dependency.ServiceAccounts, Namespace: p.Namespace, Name: p.Spec.ServiceAccountName}).(*corev1.ServiceAccount)
	return ok && slices.Contains(access.ServiceAccounts, o.UID)
}

// untagged is a name without its tag and digest, as the kubelet's records have it.
func untagged(name string) string {
	n, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return n.Name()
}

// objects checks the objects that the pod refers to, and those that these refer to.
func (f Facts) objects(p *corev1.Pod) (causes []Cause) {
	optional := optionals(p)
	todo := dependency.Of(p)
	seen := map[dependency.Ref]bool{}
	for len(todo) > 0 {
		ref := todo[0].On(f.Node)
		todo = todo[1:]
		if seen[ref] {
			continue
		}
		seen[ref] = true
		o := f.Held(ref)
		switch {
		case o == nil && optional[ref], o == nil && ref.Resource == dependency.ServiceAccounts:
			// Tokens have a cause of their own; no other field of the account is read after a boot.
		case o == nil && ref.Resource == dependency.Attachments:
			causes = append(causes, Cause{NotAttached, "the device does not hold the VolumeAttachment " + ref.Name, "start the pod once with a link"})
		case o == nil:
			causes = append(causes, Cause{ObjectMissing, fmt.Sprintf("the device does not hold %s %s", ref.Resource.Resource, strings.TrimPrefix(ref.Namespace+"/"+ref.Name, "/")),
				"create it in the cloud, and wait for the link"})
		}
		switch o := o.(type) {
		case *storagev1.VolumeAttachment:
			if !o.Status.Attached {
				causes = append(causes, Cause{NotAttached, "the volume " + o.Name + " is not attached", "start the pod once with a link"})
			}
		case *resourcev1.ResourceClaim:
			if o.Status.Allocation == nil {
				causes = append(causes, Cause{ResourceClaim, fmt.Sprintf("ResourceClaim %s/%s has no allocation", o.Namespace, o.Name), "let the scheduler allocate it, with a link"})
			}
			if o.Status.Allocation != nil && !resourceclaim.IsReservedForPod(p, o, true) {
				causes = append(causes, Cause{ResourceClaim, fmt.Sprintf("ResourceClaim %s/%s is not reserved for this pod", o.Namespace, o.Name), "let the scheduler place the pod, with a link"})
			}
		case *corev1.PersistentVolumeClaim:
			if reason := unusable(o); reason != "" {
				causes = append(causes, Cause{NotBound, fmt.Sprintf("PersistentVolumeClaim %s/%s %s", o.Namespace, o.Name, reason), "bind it in the cloud, and wait for the link"})
			}
			todo = append(todo, dependency.Of(o)...)
		case *corev1.PersistentVolume:
			if o.Spec.ClaimRef == nil {
				causes = append(causes, Cause{NotBound, "PersistentVolume " + o.Name + " is not bound", "bind it in the cloud, and wait for the link"})
			}
			todo = append(todo, slices.DeleteFunc(dependency.Of(o), func(r dependency.Ref) bool {
				return r.Resource == dependency.Attachments && !f.attaches(o.Spec.CSI.Driver)
			})...)
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(p, &c); err != nil {
			causes = append(causes, Cause{ResourceClaim, "the pod has no ResourceClaim yet for " + c.Name, "wait for the link, until the cloud has made it of its template"})
		}
	}
	return causes
}

// unusable is why the kubelet mounts no volume of a claim (getPVCExtractPV); "": it does.
func unusable(c *corev1.PersistentVolumeClaim) string {
	switch {
	case c.DeletionTimestamp != nil && !slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection"):
		return "is being deleted"
	case c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName == "":
		return "is not bound"
	}
	return ""
}

// attaches reports whether volumes of a CSI driver are attached; those of one that the device does
// not hold are (pkg/volume/csi, skipAttach).
func (f Facts) attaches(driver string) bool {
	o, ok := f.Held(dependency.Ref{Resource: csiDrivers, Name: driver}).(*storagev1.CSIDriver)
	return !ok || o.Spec.AttachRequired == nil || *o.Spec.AttachRequired
}

// keys checks the keys of ConfigMaps and Secrets that the pod names, in those that are held.
func (f Facts) keys(p *corev1.Pod) (causes []Cause) {
	seen := map[string]bool{}
	need := func(resource schema.GroupVersionResource, name, key string, optional *bool, has func(o runtime.Object) bool) {
		if optional != nil && *optional {
			return
		}
		o := f.Held(dependency.Ref{Resource: resource, Namespace: p.Namespace, Name: name})
		message := fmt.Sprintf("%s %s/%s on the device has no key %s", resource.Resource, p.Namespace, name, key)
		if o == nil || has(o) || seen[message] {
			return
		}
		seen[message] = true
		causes = append(causes, Cause{ObjectMissing, message, "add the key in the cloud, and wait for the link"})
	}
	secret := func(name, key string, optional *bool) {
		need(dependency.Secrets, name, key, optional, func(o runtime.Object) bool {
			s, ok := o.(*corev1.Secret)
			return ok && has(s.Data, key)
		})
	}
	config := func(name, key string, optional *bool, binary bool) {
		need(dependency.ConfigMaps, name, key, optional, func(o runtime.Object) bool {
			m, ok := o.(*corev1.ConfigMap)
			return ok && (has(m.Data, key) || binary && has(m.BinaryData, key))
		})
	}
	for _, c := range containers(p) {
		for _, e := range c.Env {
			if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil {
				secret(from.SecretKeyRef.Name, from.SecretKeyRef.Key, from.SecretKeyRef.Optional)
			} else if from != nil && from.ConfigMapKeyRef != nil {
				config(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional, false)
			}
		}
	}
	ofVolume := func(s *corev1.SecretProjection, m *corev1.ConfigMapProjection) {
		if s != nil {
			for _, i := range s.Items {
				secret(s.Name, i.Key, s.Optional)
			}
		}
		if m != nil {
			for _, i := range m.Items {
				config(m.Name, i.Key, m.Optional, true)
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Secret != nil {
			ofVolume(&corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName}, Items: v.Secret.Items, Optional: v.Secret.Optional}, nil)
		}
		if v.ConfigMap != nil {
			ofVolume(nil, &corev1.ConfigMapProjection{LocalObjectReference: v.ConfigMap.LocalObjectReference, Items: v.ConfigMap.Items, Optional: v.ConfigMap.Optional})
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				ofVolume(source.Secret, source.ConfigMap)
			}
		}
	}
	return causes
}

func has[V any](data map[string]V, key string) bool {
	_, ok := data[key]
	return ok
}

// optionals are objects that the pod starts without: each of its references is optional.
func optionals(p *corev1.Pod) map[dependency.Ref]bool {
	all := map[dependency.Ref]bool{}
	is := func(optional *bool) bool { return optional != nil && *optional }
	note := func(ref dependency.Ref, optional bool) {
		before, seen := all[ref]
		all[ref] = optional && (before || !seen)
	}
	secret := func(name string, optional bool) {
		note(dependency.Ref{Resource: dependency.Secrets, Namespace: p.Namespace, Name: name}, optional)
	}
	config := func(name string, optional bool) {
		note(dependency.Ref{Resource: dependency.ConfigMaps, Namespace: p.Namespace, Name: name}, optional)
	}
	for _, s := range p.Spec.ImagePullSecrets { // a pod starts without them: images have a cause of their own
		secret(s.Name, true)
	}
	for _, v := range p.Spec.Volumes {
		if v.Secret != nil {
			secret(v.Secret.SecretName, is(v.Secret.Optional))
		}
		if v.ConfigMap != nil {
			config(v.ConfigMap.Name, is(v.ConfigMap.Optional))
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					secret(s.Secret.Name, is(s.Secret.Optional))
				}
				if s.ConfigMap != nil {
					config(s.ConfigMap.Name, is(s.ConfigMap.Optional))
				}
			}
		}
	}
	for _, c := range containers(p) {
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				secret(e.SecretRef.Name, is(e.SecretRef.Optional))
			}
			if e.ConfigMapRef != nil {
				config(e.ConfigMapRef.Name, is(e.ConfigMapRef.Optional))
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				secret(e.ValueFrom.SecretKeyRef.Name, is(e.ValueFrom.SecretKeyRef.Optional))
			}
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				config(e.ValueFrom.ConfigMapKeyRef.Name, is(e.ValueFrom.ConfigMapKeyRef.Optional))
			}
		}
	}
	return all
}

// resources are those of device plugins.
func (f Facts) resources(p *corev1.Pod) (causes []Cause) {
	fromClaims := map[string]bool{} // resources that DRA gives
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			fromClaims[m.ResourceName] = true
		}
	}
	seen := map[corev1.ResourceName]bool{}
	for _, c := range containers(p) {
		for name, n := range c.Resources.Limits {
			if !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/") || fromClaims[string(name)] || seen[name] || n.IsZero() {
				continue
			}
			seen[name] = true
			// Those that the Node does not have are ignored (removeMissingExtendedResources).
			if have, known := f.Allocatable[name]; known && have.Cmp(n) < 0 {
				causes = append(causes, Cause{DevicePlugin, fmt.Sprintf("it needs %s of %s, and the Node has %s", n.String(), name, have.String()), "see that the device plugin runs on this device"})
			}
		}
	}
	return causes
}

// projections are tokens and certificates.
func (f Facts) projections(p *corev1.Pod) (causes []Cause) {
	for _, v := range p.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.PodCertificate != nil {
				causes = append(causes, Cause{PodCertificate, "its volume " + v.Name + " has a pod certificate, which kube-apiserver issues after each boot", "don't use one on devices that boot without a link"})
			}
			t := s.ServiceAccountToken
			if t == nil {
				continue
			}
			spec := authenticationv1.TokenRequestSpec{
				ExpirationSeconds: t.ExpirationSeconds,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
			}
			if t.Audience != "" {
				spec.Audiences = []string{t.Audience}
			}
			if !f.HasToken(p.Namespace, p.Spec.ServiceAccountName, spec) {
				causes = append(causes, Cause{Token, fmt.Sprintf("no token of ServiceAccount %s is kept for its volume %s", p.Spec.ServiceAccountName, v.Name), "let the pod start once with a link"})
			}
		}
	}
	return causes
}

// wantsHostIP reports whether a container has the host's address in its environment.
func wantsHostIP(p *corev1.Pod) bool {
	return slices.ContainsFunc(containers(p), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && strings.HasPrefix(e.ValueFrom.FieldRef.FieldPath, "status.hostIP")
		})
	})
}
