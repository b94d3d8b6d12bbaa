package edged

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// sharing is a client whose watches of Services return objects shared with others in the process.
// The kubelet caches all Services of the cluster, for the environment variables of pods, and never
// changes them. It is used by pointer: the kubelet asks by reflection whether its clients are nil.
type sharing struct {
	kubernetes.Interface
	share func(*corev1.Service) *corev1.Service
}

type sharingCore struct {
	typedcorev1.CoreV1Interface
	share func(*corev1.Service) *corev1.Service
}

type sharingServices struct {
	typedcorev1.ServiceInterface
	share func(*corev1.Service) *corev1.Service
}

// newSharing returns a client as the kubelet gets it. Where share is nil that is the client itself.
func newSharing(c kubernetes.Interface, share func(*corev1.Service) *corev1.Service) kubernetes.Interface {
	if share == nil {
		return c
	}
	return &sharing{c, share}
}

// CoreV1 implements kubernetes.Interface.
func (c *sharing) CoreV1() typedcorev1.CoreV1Interface {
	return sharingCore{c.Interface.CoreV1(), c.share}
}

// Services implements typedcorev1.CoreV1Interface.
func (c sharingCore) Services(namespace string) typedcorev1.ServiceInterface {
	return sharingServices{c.CoreV1Interface.Services(namespace), c.share}
}

// Watch implements typedcorev1.ServiceInterface.
func (c sharingServices) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := c.ServiceInterface.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if s, ok := e.Object.(*corev1.Service); ok && (e.Type == watch.Added || e.Type == watch.Modified) { // a bookmark's annotations matter
			e.Object = c.share(s)
		}
		return e, true
	}), nil
}
