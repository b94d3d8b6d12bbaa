package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
)

// poller sets one condition by a problem that it polls.
type poller struct {
	every time.Duration
	// problem returns the current problem, and one word for the condition's reason; empty without a
	// problem.
	problem func(ctx context.Context) (reason, message string)
	good    corev1.NodeCondition // the condition without a problem
	node    string
	client  *rest.Config // of the edge API
}

// run polls until ctx ends. The condition is written when the problem changes, the first time only
// if there is one; written, if set, is called after that.
func (p *poller) run(ctx context.Context, port *beehive.Port, written func(before, problem string)) error {
	client, err := kubernetes.NewForConfig(p.client)
	if err != nil {
		return fmt.Errorf("making the client for the Node's condition: %w", err)
	}
	port.Ready()
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	before, known := "", false
	for {
		reason, problem := p.problem(ctx)
		if problem != before || !known {
			want := p.good
			want.Status = corev1.ConditionFalse
			if problem != "" {
				want.Status, want.Reason, want.Message = corev1.ConditionTrue, reason, problem
			}
			if known = set(ctx, client, p.node, want) == nil; known {
				if written != nil {
					written(before, problem)
				}
				before = problem
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// set sets a condition of the Node if its status, or the message of a problem, differs from the
// current one. A missing condition counts as false.
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
	klog.FromContext(ctx).Info("Setting a condition of the Node", "type", want.Type, "status", want.Status, "message", want.Message)
	want.LastTransitionTime = metav1.Now()
	want.LastHeartbeatTime = want.LastTransitionTime
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{want}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
