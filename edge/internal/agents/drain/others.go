package drain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// nodesPage is as many nodes as are asked for at once.
const nodesPage = 250

// Check reports whether the node is alone: no other node could take any of the pods that a drain
// would evict. Evicted, they would wait for this node to come back. Where at least one could go,
// the drain evicts all (docs/dev/decisions/0029).
func (w *Worker) Check(ctx context.Context) Result {
	pods, err := w.leaving(ctx)
	if err != nil {
		return failed(err)
	}
	if len(pods) == 0 {
		pods = []corev1.Pod{{}} // any node that takes ordinary pods will do
	}
	o := metav1.ListOptions{FieldSelector: "metadata.name!=" + w.node, Limit: nodesPage}
	for {
		list, err := w.client.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return failed(err)
		}
		for i := range list.Items {
			for j := range pods {
				if couldTake(ctx, &list.Items[i], &pods[j]) {
					return Result{}
				}
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return Result{Alone: true}
		}
	}
}

// couldTake reports whether the scheduler could bind a pod to a node as far as the node's own rules
// go: it is schedulable and Ready, the pod tolerates its taints, its labels match. Free resources
// are not checked: they change constantly.
//
// A node that is being drained itself counts as it will be afterwards: otherwise, of many nodes
// that are drained at once, the last would find itself alone and proceed in spite of the budgets.
func couldTake(ctx context.Context, node *corev1.Node, pod *corev1.Pod) bool {
	draining := ours(node)
	if !draining && (node.Spec.Unschedulable || !isReady(node)) {
		return false
	}
	keeps := func(t *corev1.Taint) bool {
		if draining && (t.Key == corev1.TaintNodeUnschedulable || t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) {
			return false // it is removed by the drain
		}
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	if _, refused := schedulingcorev1.FindMatchingUntoleratedTaint(klog.FromContext(ctx), node.Spec.Taints, pod.Spec.Tolerations, keeps, false); refused {
		return false
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && matches
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
