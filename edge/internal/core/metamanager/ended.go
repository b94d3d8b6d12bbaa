package metamanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// endedHere returns the pod that a patch ends for a reason of the node while there is no link, or
// that has ended so before; nil: the patch is for the cloud. An end that was written with a link
// may have reached the cloud, so it is final.
func (m *Manager) endedHere(b *batch, w Write, class storepb.Class, before, after runtime.Object) *corev1.Pod {
	if class != storepb.Class_POD_STATUS {
		return nil
	}
	now, ok := after.(*corev1.Pod)
	if !ok {
		return nil
	}
	if outbox.LocalOf(b.outbox.Pending(w.Ref), now.UID) != nil {
		return now // later reports of it stay with its end
	}
	if _, linked := b.view.Link(); linked || !podrestart.ByNode(now) {
		return nil
	}
	if old, ok := before.(*corev1.Pod); !ok || podrestart.Terminal(old) {
		return nil
	}
	return now
}

// wakeRestarts has restartPods look.
func (m *Manager) wakeRestarts() {
	select {
	case m.ended <- struct{}{}:
	default:
	}
}
