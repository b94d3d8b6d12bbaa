package link

import (
	"slices"
	"strings"
)

// dictionary is the text that a compressor has seen before a small message begins, so that the text
// which all such messages have in common costs a few bytes in each. Its text is part of the wire
// contract: ends that mean different texts by one id read garbage. So the text of an id never
// changes; a better one gets another id, in front of those of older peers.
type dictionary struct {
	id    uint32 // below 256, which takes one byte in each frame; RFC 8878, 3.1.1.1.3: between agreeing ends any will do
	parts []string
}

func (d dictionary) text() []byte { return []byte(strings.Join(d.parts, "")) }

// dictionaries are those that this end reads, the best first.
var dictionaries = []dictionary{{1, dictionary1}}

// dictionaryIDs are those that this end announces to its peer.
func dictionaryIDs() (ids []uint32) {
	for _, d := range dictionaries {
		ids = append(ids, d.id)
	}
	return ids
}

// withID is a dictionary that this end has.
func withID(id uint32) (d dictionary, ok bool) {
	for _, d := range dictionaries {
		if d.id == id {
			return d, true
		}
	}
	return dictionary{}, false
}

// best is the id of the best dictionary that a peer reads as well; 0 without one.
func best(ids []uint32) uint32 {
	for _, d := range dictionaries {
		if slices.Contains(ids, d.id) {
			return d.id
		}
	}
	return 0
}

// dictionary1 is ordered from the rarest text to the most frequent: text nearer to the
// message costs less. A part in protobuf begins with a field's tag and length.
var dictionary1 = []string{
	// Refusals, as kube-apiserver words them.
	`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"`, `\" is forbidden: User \"system:node:`, `\" cannot get resource \"`,
	`","reason":"Forbidden","details":{"name":"`, `","reason":"Conflict",`, `\" not found","reason":"NotFound","details":{"name":"`, `","kind":"pods"},"code":404}`,
	// Our own kinds, and others that come as JSON.
	`"conditions":[{"lastTransitionTime":"`, `"matchLabels":{"`, `"nodeSelector":{"`, `{"apiVersion":"skerry.io/v1alpha1","kind":"`, `","metadata":{"creationTimestamp":"20`,
	`","generation":1,"labels":{"`, `"},"name":"`, `","namespace":"default","resourceVersion":"`, `","uid":"`, `"},"spec":{"`,
	// Names that are found on many objects.
	"endpointslice.kubernetes.io/managed-by\x12\x1eendpointslice-controller.k8s.io", "kubernetes.io/service-name", "app.kubernetes.io/managed-by\x12\x04Helm", "app.kubernetes.io/instance",
	"app.kubernetes.io/version", "app.kubernetes.io/component", "app.kubernetes.io/name",
	"pod-template-hash", "controller-revision-hash",
	"kubernetes.io/arch\x12\x05arm64", "kubernetes.io/os\x12\x05linux", "kubernetes.io/hostname", "kubernetes.io/tls", "tls.crt", "tls.key", "Opaque", "EndpointSlice",
	"kube-system", "apps/v1", "ReplicaSet", "DaemonSet",
	// Pods, as they come down.
	"k8s\x00\n\t\n\x02v1\x12\x03Pod\x12", "node.kubernetes.io/not-ready\x12\x06Exists\x1a\x00\"\tNoExecute(\xac\x02", "node.kubernetes.io/unreachable", "PreemptLowerPriority", "default-scheduler",
	"kube-root-ca.crt\x12\x10\n\x06ca.crt\x12\x06ca.crt\x18\x00", "\n\tnamespace\x12\x14\n\x02v1\x12\x0emetadata.namespace", "ClusterFirst", "Burstable", "BestEffort",
	"/dev/termination-log", "IfNotPresent", "RuntimeDefault", "TCP*\x00",
	// Requests of kubelets and their answers.
	"application/vnd.kubernetes.protobuf,application/json", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{`, `},"spec":{"audiences":null,"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"`,
	`","uid":"`, `"}},"status":{"token":"","expirationTimestamp":null}}`, "\n\x04POST\x12\x38/api/v1/namespaces/default/serviceaccounts/default/token", "/apis/", "\n\x03GET\x12\x1a/api/v1/namespaces/",
	// Interests of a device.
	"\x12\x01*\x15spec.nodeName=", "metadata.name=", "\n\vnode.k8s.io\x12\x02v1\x1a\x0eruntimeclasses", "\n\x0estorage.k8s.io\x12\x02v1\x1a\ncsidrivers",
	"\n\x11networking.k8s.io\x12\x02v1\x1a\fservicecidrs", "ingresses", "\n\x13coordination.k8s.io\x12\x02v1\x1a\x06leases", "\n\x10discovery.k8s.io\x12\x02v1\x1a\x0eendpointslices",
	"\n\tskerry.io\x12\bv1alpha1\x1a\fstaticroutes", "\x12\bv1alpha1\x1a\x12servicecollections", "\x12\bv1alpha1\x1a\x0enodeoperations", "\x12\bv1alpha1\x1a\nvirtualips", "\x12\bv1alpha1\x1a\tnodepools",
	"\x12\bv1alpha1\x1a\bedgeapps", "\x12\x02v1\x1a\asecrets", "\x12\x02v1\x1a\x05nodes",
	// The status of a node.
	`{"status":{"$setElementOrder/conditions":[{"type":"MemoryPressure"},{"type":"DiskPressure"},{"type":"PIDPressure"},{"type":"Ready"}],"conditions":[{"lastHeartbeatTime":"20`,
	`Z","type":"MemoryPressure"},{"lastHeartbeatTime":"20`, `Z","type":"DiskPressure"},{"lastHeartbeatTime":"20`, `Z","type":"PIDPressure"},{"lastHeartbeatTime":"20`, `Z","type":"Ready"}]`,
	// Events.
	"Failed", "Unhealthy", "Readiness probe failed: ", "Liveness probe failed: ", "Back-off restarting failed container ", "BackOff", "Killing", "Stopping container ", "Scheduled", "Pulling", "Pulling image \"",
	"Created", "Created container: ", "Started", "Started container ", "Pulled", "Container image \"", "\" already present on machine and can be accessed by the pod",
	"\x10\x01\x1a\f\x12\x02v1\x1a\x06events\"\adefault*", "k8s\x00\n\v\n\x02v1\x12\x05Event\x12", "\n\x03Pod\x12\adefault\x1a", ":\x14spec.containers{", "*\x02v12\x05", "Warning", "*\x12\n\akubelet\x12\a",
	"@\x01J\x06NormalR\x00b\x00r\akubeletz\a", "\x1a\x00\"\x00J$",
	// The status of a pod.
	"\x10\x02\x1a\n\x12\x02v1\x1a\x05nodes*\a", "\x10\x02\x1a\n\x12\x02v1\x1a\x04pods\"\adefault*", "2\x06status:&application/strategic-merge-patch+jsonB", `{"metadata":{"uid":"`,
	`"},"status":{"$setElementOrder/conditions":[{"type":"PodReadyToStartContainers"},{"type":"Initialized"},{"type":"Ready"},{"type":"ContainersReady"},{"type":"PodScheduled"}],"conditions":[{"lastTransitionTime":"20`,
	`"message":"containers with unready status: [`, `"reason":"ContainersNotReady","status":"False"`, `"message":null,"observedGeneration":1,"reason":null,"status":"True","type":"Ready"},`,
	`Z","observedGeneration":1,"status":"True","type":"ContainersReady"}],"containerStatuses":[{"allocatedResources":{"cpu":"100m","memory":"`, `Mi"},"containerID":"containerd://`,
	`","image":"`, `","imageID":"`, `@sha256:`, `","lastState":{"terminated":{"containerID":"`, `"exitCode":0,"finishedAt":"20`, `"reason":"Completed"`, `"reason":"Error"`, `"reason":"CrashLoopBackOff"`, `"waiting":{"message":"`, `"ContainerCreating"`,
	`"lastState":{},"name":"`, `","ready":true,"resources":{"limits":{"cpu":"`, `"requests":{"cpu":"`, `"restartCount":0,"started":true,"state":{"running":{"startedAt":"20`,
	`"user":{"linux":{"gid":0,"supplementalGroups":[0],"uid":0}},`, `Z"}},"volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access-`, `","readOnly":true,"recursiveReadOnly":"Disabled"}]`, `}],"hostIP":"`, `"hostIPs":[{"ip":"`, `"phase":"Running","podIP":"10.`, `","podIPs":[{"ip":"10.`, `"}],"startTime":"20`,
	// Objects, as they come down.
	"\x12\x10\x12\x02v1\x1a\nconfigmaps\x12", "k8s\x00\n\x0c\n\x02v1\x12\x06Secret\x12", "k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12",
	"https", "NodePort", "LoadBalancer", "PreferDualStack", "\n\x17\n\x04http\x12\x03TCP\x18P\"\x06\b\x00\x10P\x1a\x00(\x00", "\n\x1c\n\ametrics\x12\x03TCP\x18\x82G\"\a\b\x00\x10\x82G\x1a\x00(\x00\x12\x0f\n\x03app\x12\b",
	"\x1a\v10.96.", "\"\tClusterIP:\x04NoneB\x00R\x00Z\x00`\x00h\x00\x8a\x01\vSingleStack\x92\x01\v10.96.", "\x9a\x01\x04IPv4\xb2\x01\aCluster\x1a\x02\n\x00\x1a\x00\"\x00",
	"\x12\x0e\x12\x02v1\x1a\bservices\x12", "\x02\n\adefault\x12\f", "k8s\x00\n\r\n\x02v1\x12\aService\x12", "\x12\x00\x1a\adefault\"\x00*$", "8\x00B\b\b", "\x06\x10\x00Z\x0f\n\x03app\x12\b",
}
