package endpoints

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// notable are the Services that matter for the correction of their slices, which few
// have. Any goroutine may use it.
type notable struct {
	wake func()

	mu  sync.Mutex
	all map[types.NamespacedName]Service
}

// now is a copy.
func (n *notable) now() map[types.NamespacedName]Service {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.all)
}

// set takes over a Service; the zero value for one that does not matter, or is gone.
func (n *notable) set(key types.NamespacedName, now Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all[key] == now {
		return
	}
	if now == (Service{}) {
		delete(n.all, key)
	} else {
		n.all[key] = now
	}
	n.wake()
}

func (n *notable) handler() cache.ResourceEventHandler {
	take := func(o any) {
		s, ok := o.(*corev1.Service)
		if !ok {
			return
		}
		f := Service{PublishNotReady: s.Spec.PublishNotReadyAddresses}
		if s.Spec.TrafficDistribution != nil {
			f.Distribution = *s.Spec.TrafficDistribution
		}
		n.set(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, f)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: take, UpdateFunc: func(_, now any) { take(now) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingObjectToName(o); err == nil {
				n.set(types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, Service{})
			}
		},
	}
}
