package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// tolerated is how many seconds a pod of an application stays on a node that Kubernetes
// evicts from.
const tolerated = 15

// mostWeight is the largest weight of a preference.
const mostWeight = 100

func owner(app *v1alpha1.EdgeApp) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "EdgeApp", Name: app.Name, UID: app.UID, Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

func owned(app *v1alpha1.EdgeApp, o metav1.Object) bool {
	c := metav1.GetControllerOf(o)
	return c != nil && c.UID == app.UID
}

// claimName is the name of the claim of a volume.
func claimName(app, volume string) string { return app + "-" + volume }

// Render makes the ReplicaSet of an application.
func Render(app *v1alpha1.EdgeApp) (*appsv1.ReplicaSet, error) {
	replicas := int32(0)
	if app.Spec.Active() {
		replicas = 1
	}
	template, err := app.Spec.PodTemplate()
	if err != nil {
		return nil, err
	}
	template.Name, template.GenerateName, template.Namespace = "", "", ""
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[v1alpha1.EdgeAppLabel] = app.Name
	placed(&template.Spec, app.Spec.Affinity, app.Spec.DesignatedNode)
	tolerate(&template.Spec)
	mounted(&template.Spec, app)
	if app.Spec.Fenced() == v1alpha1.FencingConfirmed {
		template.Spec.SchedulingGates = append(template.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.EdgeAppGate})
	}
	delete(template.Annotations, v1alpha1.EdgeAppHeldAtBoot)
	if app.Spec.Singleton && app.Spec.Affinity != v1alpha1.AppRequired && !app.Spec.Failover.OfflineStart {
		if template.Annotations == nil {
			template.Annotations = map[string]string{}
		}
		template.Annotations[v1alpha1.EdgeAppHeldAtBoot] = "true"
	}
	raw, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("encoding the template: %w", err)
	}
	sum := sha256.Sum256(raw)
	template.Labels[v1alpha1.EdgeAppRevisionLabel] = hex.EncodeToString(sum[:8])
	return &appsv1.ReplicaSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: app.Namespace, Name: app.Name, OwnerReferences: []metav1.OwnerReference{owner(app)},
			Labels: map[string]string{v1alpha1.EdgeAppLabel: app.Name, v1alpha1.EdgeAppRevisionLabel: template.Labels[v1alpha1.EdgeAppRevisionLabel]},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EdgeAppLabel: app.Name}}, Template: *template,
		},
	}, nil
}

// placed adds the affinity to the designated node. An application runs on edge nodes only.
//
// The node is chosen by the field metadata.name: the label kubernetes.io/hostname is the kubelet's
// to set (KEP-279), so that another device could take the application, and the Secrets that it
// mounts.
func placed(spec *corev1.PodSpec, affinity v1alpha1.AppAffinity, node string) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	to := spec.Affinity.NodeAffinity
	here := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	edge := corev1.NodeSelectorRequirement{Key: v1alpha1.EdgeOwnLabel, Operator: corev1.NodeSelectorOpExists}
	var must []corev1.NodeSelectorRequirement
	if affinity == v1alpha1.AppRequired {
		must = append(must, here)
	} else {
		to.PreferredDuringSchedulingIgnoredDuringExecution = append(to.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
			Weight: mostWeight, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{here}},
		})
	}
	if to.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		to.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
	}
	// Terms are alternatives: the requirement is added to each.
	required := to.RequiredDuringSchedulingIgnoredDuringExecution
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	for i := range required.NodeSelectorTerms {
		t := &required.NodeSelectorTerms[i]
		t.MatchExpressions = append(t.MatchExpressions, edge)
		t.MatchFields = append(t.MatchFields, must...)
	}
}

// tolerate sets for how long a pod stays where Kubernetes evicts. It also tolerates the taint by
// which a person marks a node as out of service: the reaction depends on the volumes, and is the
// controller's to decide.
func tolerate(spec *corev1.PodSpec) {
	seconds := int64(tolerated)
	own := []corev1.Toleration{
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
		{Key: corev1.TaintNodeOutOfService, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
	spec.Tolerations = slices.DeleteFunc(spec.Tolerations, func(t corev1.Toleration) bool {
		return slices.ContainsFunc(own, func(o corev1.Toleration) bool { return o.Key == t.Key && t.Effect != corev1.TaintEffectNoSchedule })
	})
	spec.Tolerations = append(spec.Tolerations, own...)
}

// mounted adds the claims under the names in the containers.
func mounted(spec *corev1.PodSpec, app *v1alpha1.EdgeApp) {
	for _, v := range app.Spec.Volumes {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(app.Name, v.Name)},
		}})
	}
}

// Claim makes the claim of a volume.
func Claim(app *v1alpha1.EdgeApp, v *v1alpha1.AppVolume) (*corev1.PersistentVolumeClaim, error) {
	size, err := resource.ParseQuantity(v.Size)
	if err != nil {
		return nil, fmt.Errorf("size of volume %s: %w", v.Name, err)
	}
	mode := corev1.PersistentVolumeFilesystem
	if v.Block {
		mode = corev1.PersistentVolumeBlock
	}
	c := &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: app.Namespace, Name: claimName(app.Name, v.Name), OwnerReferences: []metav1.OwnerReference{owner(app)},
			Labels: map[string]string{v1alpha1.EdgeAppLabel: app.Name},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: &mode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	if v.StorageClassName != "" {
		c.Spec.StorageClassName = &v.StorageClassName
	}
	return c, nil
}
