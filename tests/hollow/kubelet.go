package hollow

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/version"
)

// interestsOf are the interests of an edge without pods: the watches of its kubelet, of its agents
// for routes and virtual IPs, and the dependencies of pods.
func interestsOf(node string) []*topicpb.Interest {
	all := []*topicpb.Interest{{Dependencies: true}}
	for _, w := range []struct{ group, version, resource, labels, fields string }{
		{"", "v1", "nodes", "", "metadata.name=" + node},
		{"", "v1", "pods", "", "spec.nodeName=" + node},
		{"", "v1", "services", "", "spec.clusterIP!=None"},
		{"certificates.k8s.io", "v1", "podcertificaterequests", "", "spec.nodeName=" + node},
		{"node.k8s.io", "v1", "runtimeclasses", "", ""},
		{"storage.k8s.io", "v1", "csidrivers", "", ""},
		{"storage.k8s.io", "v1", "csinodes", "", "metadata.name=" + node},
		{"networking.k8s.io", "v1", "servicecidrs", "", ""},
		{v1alpha1.Group, v1alpha1.Version, v1alpha1.StaticRoutes, "", ""},
		{v1alpha1.Group, v1alpha1.Version, v1alpha1.VirtualIPs, v1alpha1.VIPNodeLabel(node), ""},
	} {
		all = append(all, &topicpb.Interest{
			Resource: &topicpb.Resource{Group: w.group, Version: w.version, Resource: w.resource}, LabelSelector: w.labels, FieldSelector: w.fields,
		})
	}
	for i := range all {
		all[i].Id = uint64(i + 1)
	}
	return all
}

// nodeStatus is that of a small device which is well.
func nodeStatus(name string, now time.Time) corev1.NodeStatus {
	at := metav1.NewTime(now)
	var conditions []corev1.NodeCondition
	for _, c := range []struct {
		kind         corev1.NodeConditionType
		status       corev1.ConditionStatus
		reason, text string
	}{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "there is no kubelet, and it has sufficient memory available"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "there is no kubelet, and it has no disk pressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "there is no kubelet, and it has sufficient PID available"},
		{corev1.NodeReady, corev1.ConditionTrue, "HollowNodeReady", "a hollow node is always ready"},
	} {
		conditions = append(conditions, corev1.NodeCondition{
			Type: c.kind, Status: c.status, Reason: c.reason, Message: c.text, LastHeartbeatTime: at, LastTransitionTime: at,
		})
	}
	// No pod fits, and the taint keeps those of DaemonSets away: there is no kubelet to run them.
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("0"),
	}
	return corev1.NodeStatus{
		Capacity: room, Allocatable: room, Conditions: conditions,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
		NodeInfo: corev1.NodeSystemInfo{
			KubeletVersion: version.Kubernetes(), OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "hollow://0",
		},
	}
}

// registration is a kubelet's first request.
func registration(name string, now time.Time) *topicpb.APIRequest {
	body, err := json.Marshal(&corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "skerry.io/edge": "",
		}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "skerry.io/hollow", Effect: corev1.TaintEffectNoSchedule}}},
		Status: nodeStatus(name, now),
	})
	if err != nil {
		panic(fmt.Sprintf("hollow: a Node does not encode: %v", err)) // it has no field that could fail
	}
	return &topicpb.APIRequest{
		Method: http.MethodPost, Path: "/api/v1/nodes", Accept: "application/json", ContentType: "application/json", Body: body, TimeoutMillis: 30_000,
	}
}

// status is the report of an idle kubelet: its conditions with new times. A node whose Lease ended
// becomes Ready again by it.
func status(name string, id uint64, now time.Time) *topicpb.Write {
	type condition struct {
		Type              corev1.NodeConditionType `json:"type"`
		Status            corev1.ConditionStatus   `json:"status"`
		LastHeartbeatTime metav1.Time              `json:"lastHeartbeatTime"`
	}
	at := metav1.NewTime(now)
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []condition{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, at}, {corev1.NodeDiskPressure, corev1.ConditionFalse, at},
		{corev1.NodePIDPressure, corev1.ConditionFalse, at}, {corev1.NodeReady, corev1.ConditionTrue, at},
	}}})
	if err != nil {
		panic(fmt.Sprintf("hollow: a patch does not encode: %v", err))
	}
	return &topicpb.Write{
		Id: id, Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: name, Subresource: "status",
		PatchType: string(types.StrategicMergePatchType), Body: body, UnixMillis: now.UnixMilli(),
	}
}
