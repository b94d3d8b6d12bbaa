// Package check checks whether cloudcore can be installed in a cluster, and finds DaemonSets that
// would run on devices by mistake.
//
// It owns the list of a cluster's requirements. It only reads and sends reviews; it changes no
// object. Run makes one check after another, with the rights of the administrator who installs.
package check

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/install"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	Fine Level = "fine"
	Warn Level = "warn" // cloudcore works; something else is not as most would want it
	Fail Level = "fail" // cloudcore can't be installed, or won't work
)

// Finding is the answer to one question.
type Finding struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"` // what to do
}

// leastKubernetes has MutatingAdmissionPolicy in v1 and constrained impersonation
// (KEP-3962, KEP-5284).
const leastKubernetes = "1.36.0"

// Run asks every question. A question that can't be asked is a finding too.
func Run(ctx context.Context, client kubernetes.Interface) []Finding {
	findings := []Finding{kubernetesVersion(client), served(client), rights(ctx, client)}
	return append(findings, daemonSets(ctx, client)...)
}

func kubernetesVersion(client kubernetes.Interface) Finding {
	const name = "kubernetes"
	info, err := client.Discovery().ServerVersion()
	if err != nil {
		return Finding{name, Fail, fmt.Sprintf("kube-apiserver's version can't be read: %v", err), "look at the kubeconfig, and at kube-apiserver"}
	}
	v, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil {
		return Finding{name, Warn, fmt.Sprintf("kube-apiserver has the version %q", info.GitVersion), "it must be " + leastKubernetes + " at least"}
	}
	if v.LessThan(utilversion.MustParseGeneric(leastKubernetes)) {
		return Finding{
			name, Fail, fmt.Sprintf("kube-apiserver is %s, which has no MutatingAdmissionPolicy v1 and no constrained impersonation", info.GitVersion),
			"update the cluster to Kubernetes 1.36 or later",
		}
	}
	return Finding{Name: name, Level: Fine, Message: info.GitVersion}
}

// served checks the APIs that the manifests and cloudcore use beyond those of every cluster.
func served(client kubernetes.Interface) Finding {
	const name = "served APIs"
	var missing []string
	for _, want := range []struct {
		version   string
		resources []string
	}{
		{"admissionregistration.k8s.io/v1", []string{"validatingadmissionpolicies", "mutatingadmissionpolicies"}},
		{"apiextensions.k8s.io/v1", []string{"customresourcedefinitions"}},
		{"certificates.k8s.io/v1", []string{"certificatesigningrequests"}},
		{"coordination.k8s.io/v1", []string{"leases"}},
		{"authorization.k8s.io/v1", []string{"subjectaccessreviews"}},
	} {
		list, err := client.Discovery().ServerResourcesForGroupVersion(want.version)
		if err != nil && !apierrors.IsNotFound(err) {
			return Finding{name, Fail, fmt.Sprintf("kube-apiserver's API groups can't be listed: %v", err), "look at the kubeconfig, and at kube-apiserver"}
		}
		for _, r := range want.resources {
			if list == nil || !slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == r }) {
				missing = append(missing, r+" of "+want.version)
			}
		}
	}
	if len(missing) > 0 {
		return Finding{name, Fail, "not served: " + strings.Join(missing, ", "), "update the cluster, or take them out of kube-apiserver's --runtime-config"}
	}
	return Finding{Name: name, Level: Fine, Message: "all that cloudcore needs"}
}

// rights checks whether the caller may create the objects of `cloudcore install`, and may grant
// rights by it.
func rights(ctx context.Context, client kubernetes.Interface) Finding {
	const name, mend = "rights", "install with an administrator's kubeconfig"
	asked, err := installed()
	if err != nil {
		return Finding{name, Fail, err.Error(), "report this: the manifests of this build are broken"}
	}
	var refused []string
	for _, a := range asked {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
		}, metav1.CreateOptions{})
		if err != nil {
			return Finding{name, Fail, fmt.Sprintf("your permissions can't be reviewed: %v", err), mend}
		}
		if !review.Status.Allowed {
			refused = append(refused, a.Verb+" "+a.Resource)
		}
	}
	if len(refused) > 0 {
		return Finding{name, Fail, "you may not " + strings.Join(refused, ", "), mend}
	}
	return Finding{Name: name, Level: Fine, Message: "you may create the objects of 'cloudcore install'"}
}

// installed are the rights that it takes to apply the manifests with all their options, each once.
func installed() ([]authorizationv1.ResourceAttributes, error) {
	raw, err := install.Render(install.Options{Advertise: []string{"any"}, Image: "any", Replicas: 1, Usage: true, Endpoint: true})
	if err != nil {
		return nil, err
	}
	var all []authorizationv1.ResourceAttributes
	add := func(a authorizationv1.ResourceAttributes) {
		if !slices.ContainsFunc(all, func(b authorizationv1.ResourceAttributes) bool {
			return a.Verb == b.Verb && a.Group == b.Group && a.Resource == b.Resource && a.Namespace == b.Namespace
		}) {
			all = append(all, a)
		}
	}
	for d := range strings.SplitSeq(string(raw), "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(d), &o.Object); err != nil {
			return nil, fmt.Errorf("reading the manifests: %w", err)
		}
		kind := o.GroupVersionKind()
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		for _, verb := range []string{"create", "patch"} {
			add(authorizationv1.ResourceAttributes{Verb: verb, Group: kind.Group, Resource: resource.Resource, Namespace: o.GetNamespace()})
		}
		if strings.HasSuffix(kind.Kind, "Role") { // RBAC lets no one grant rights that they lack, except by this verb (escalation prevention)
			add(authorizationv1.ResourceAttributes{Verb: "escalate", Group: kind.Group, Resource: resource.Resource, Namespace: o.GetNamespace()})
		}
	}
	return all, nil
}

// maxPage bounds an answer of kube-apiserver, in DaemonSets.
const maxPage = 500

// daemonSets finds those that would run on devices without having been made for them: agents of the
// cloud's network and disks, mostly, which fail there for ever.
func daemonSets(ctx context.Context, client kubernetes.Interface) []Finding {
	const name = "DaemonSets"
	var findings []Finding
	for options := (metav1.ListOptions{Limit: maxPage}); ; {
		page, err := client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return append(findings, Finding{name, Warn, fmt.Sprintf("they can't be listed: %v", err), "ask with an administrator's kubeconfig"})
		}
		for i := range page.Items {
			if f, lands := landsOnEdges(&page.Items[i]); lands {
				findings = append(findings, f)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if len(findings) == 0 {
		return []Finding{{Name: name, Level: Fine, Message: "no DaemonSet would run on devices by mistake"}}
	}
	return findings
}

// landsOnEdges judges a DaemonSet by two devices that differ only in their label: one whose pods
// run on both was not made for devices; one that runs on the device alone is meant for it.
func landsOnEdges(d *appsv1.DaemonSet) (Finding, bool) {
	labels := map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: "device"}
	cloud := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "device", Labels: labels}}
	device := cloud.DeepCopy()
	device.Labels[v1alpha1.EdgeLabel] = ""
	device.Labels[v1alpha1.EdgeOwnLabel] = ""
	affinity := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: d.Spec.Template.Spec})
	onDevice, err := affinity.Match(device)
	if err != nil || !onDevice {
		return Finding{}, false
	}
	if onCloud, err := affinity.Match(cloud); err != nil || !onCloud {
		return Finding{}, false
	}
	patch, err := keepAway(d)
	if err != nil {
		return Finding{}, false
	}
	return Finding{
		"DaemonSet " + d.Namespace + "/" + d.Name, Warn, "would run on every device",
		fmt.Sprintf("unless it should: kubectl -n %s patch daemonset %s --type merge -p '%s'", d.Namespace, d.Name, patch),
	}, true
}

// keepAway is a merge patch that keeps a DaemonSet off devices, whatever it requires already: its
// terms are alternatives, and each gets the condition.
func keepAway(d *appsv1.DaemonSet) (string, error) {
	required := &corev1.NodeSelector{}
	if a := d.Spec.Template.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.DeepCopy()
	}
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: v1alpha1.EdgeLabel, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	var patch struct {
		Spec struct {
			Template struct {
				Spec struct {
					Affinity struct {
						NodeAffinity struct {
							Required *corev1.NodeSelector `json:"requiredDuringSchedulingIgnoredDuringExecution"`
						} `json:"nodeAffinity"`
					} `json:"affinity"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	patch.Spec.Template.Spec.Affinity.NodeAffinity.Required = required
	raw, err := json.Marshal(patch)
	return string(raw), err
}
