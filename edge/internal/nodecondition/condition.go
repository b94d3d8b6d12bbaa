// Package nodecondition says by conditions of this device's Node what the kubelet's own don't: that
// the disk of the data directory is full, that kubelet and kube-apiserver don't fit each other, and
// that pods do not run.
//
// It owns these conditions, and when each is looked at. It refuses to act on them: a full disk and
// a version that does not fit stop nothing. A condition is written when it changes, by the edge API
// as every write of the node, so that it waits there without a link. Each module runs in one
// goroutine; Disk may be used by many.
package nodecondition

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// set sets a condition of the Node, where its status, or the message of what is wrong, differs from
// what is there. One that is not there counts as false.
func set(ctx context.Context, client kubernetes.Interface, name string, want corev1.NodeCondition) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	have := corev1.NodeCondition{Status: corev1.ConditionFalse}
	for _, c := range node.Status.Conditions {
		if c.Type == want.Type {
			have = c
		}
	}
	if have.Status == want.Status && (want.Status == corev1.ConditionFalse || have.Message == want.Message) {
		return nil
	}
	klog.FromContext(ctx).Info("A condition of the node has changed", "type", want.Type, "status", want.Status, "message", want.Message)
	want.LastTransitionTime = metav1.Now()
	want.LastHeartbeatTime = want.LastTransitionTime
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{want}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
