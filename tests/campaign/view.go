package campaign

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// source is a list or an object that can be listed and watched.
type source struct {
	resource string
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// only narrows a source by a field.
func (s source) only(field, value string) source {
	selector := fields.OneTermEqualSelector(field, value).String()
	list, open := s.list, s.watch
	s.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = selector
		return list(ctx, o)
	}
	s.watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = selector
		return open(ctx, o)
	}
	return s
}

func podSource(c kubernetes.Interface, namespace string) source {
	return source{
		"pods", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Pods(namespace).List(ctx, o)
		},
		c.CoreV1().Pods(namespace).Watch,
	}
}

func configMapSource(c kubernetes.Interface) source {
	return source{
		"configmaps", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().ConfigMaps(namespace).List(ctx, o)
		}, c.CoreV1().ConfigMaps(namespace).Watch,
	}
}

func secretSource(c kubernetes.Interface) source {
	return source{
		"secrets", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Secrets(namespace).List(ctx, o)
		},
		c.CoreV1().Secrets(namespace).Watch,
	}
}

func eventSource(c kubernetes.Interface) source {
	return source{
		"events", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.CoreV1().Events(namespace).List(ctx, o)
		},
		c.CoreV1().Events(namespace).Watch,
	}
}

func operationSource(c dynamic.ResourceInterface) source {
	return source{
		operations, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := c.List(ctx, o)
			if err != nil { // else a nil pointer would be no nil interface
				return nil, err
			}
			return list, nil
		},
		c.Watch,
	}
}

// podsOf are an edge's pods, as its kubelet asks for them.
func podsOf(e *edge) source { return podSource(e.client, "").only("spec.nodeName", e.name) }

// nodeOf is an edge's Node, which a kubelet follows too. It is no object of the campaign's,
// and not recorded.
func nodeOf(e *edge) source {
	return source{
		"nodes", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return e.client.CoreV1().Nodes().List(ctx, o)
		},
		e.client.CoreV1().Nodes().Watch,
	}.only("metadata.name", e.name)
}

// refsOf are the objects that a pod refers to, each requested by its name as the kubelet does.
func refsOf(e *edge, pod string) []source {
	if strings.HasPrefix(pod, lost) {
		return nil // there are no such objects
	}
	return []source{configMapSource(e.client).only("metadata.name", pod), secretSource(e.client).only("metadata.name", pod)}
}

// watchCloud records the objects at kube-apiserver itself.
func (s *system) watchCloud(ctx context.Context) {
	done := make(chan struct{})
	sources := []source{podSource(s.client, namespace), configMapSource(s.client), secretSource(s.client), eventSource(s.client), operationSource(s.reported[operations])}
	for _, source := range sources {
		v := &view{recorder: s.recorder, who: history.Cloud}
		go func() {
			v.follow(ctx, source, nil)
			done <- struct{}{}
		}()
	}
	for range sources {
		<-done
	}
}

// view is one viewer's copy of one source.
type view struct {
	recorder *history.Recorder
	who      string
	known    map[types.UID]history.Record
}

// follow lists and watches until ctx ends, records every change, and calls see, which may be nil.
func (v *view) follow(ctx context.Context, s source, see func(history.Record, metav1.Object)) {
	v.known = map[types.UID]history.Record{}
	if see == nil {
		see = func(history.Record, metav1.Object) {}
	}
	for ; ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, requestPatience)
		list, err := s.list(once, metav1.ListOptions{})
		cancel()
		if err != nil {
			continue
		}
		v.replace(s.resource, list, see)
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			continue
		}
		w, err := s.watch(ctx, metav1.ListOptions{ResourceVersion: accessor.GetResourceVersion(), AllowWatchBookmarks: true})
		if err != nil {
			continue
		}
		for e := range w.ResultChan() {
			if o, ok := e.Object.(metav1.Object); ok && e.Type != watch.Bookmark && e.Type != watch.Error {
				v.change(s.resource, o, e.Type == watch.Deleted, false, see)
			}
		}
		w.Stop()
	}
}

// replace takes a list: an object that it lacks is gone.
func (v *view) replace(resource string, list runtime.Object, see func(history.Record, metav1.Object)) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return
	}
	there := map[types.UID]bool{}
	for _, i := range items {
		if o, ok := i.(metav1.Object); ok {
			there[o.GetUID()] = true
		}
	}
	for uid, r := range v.known {
		if there[uid] {
			continue
		}
		delete(v.known, uid)
		r.Kind, r.At, r.Unknown = history.Gone, v.recorder.Now(), false
		v.recorder.Add(r)
		see(r, &metav1.ObjectMeta{Name: nameOf(r), UID: uid})
	}
	for _, i := range items {
		if o, ok := i.(metav1.Object); ok {
			v.change(resource, o, false, true, see)
		}
	}
}

func nameOf(r history.Record) string { return r.Name[len(namespace)+1:] }

func (v *view) change(resource string, o metav1.Object, deleted, listed bool, see func(history.Record, metav1.Object)) {
	if o.GetNamespace() != namespace && resource != operations {
		return
	}
	r := history.Record{
		Kind: history.Seen, Who: v.who, Resource: resource, Name: namespace + "/" + called(o), UID: string(o.GetUID()), Value: valueOf(o),
		At: v.recorder.Now(), Unknown: listed, // the order of a list has no meaning
	}
	if pod, ok := o.(*corev1.Pod); ok && !counted(pod) {
		r.Value = v.known[o.GetUID()].Value
	}
	switch {
	case deleted:
		r.Kind = history.Gone
		delete(v.known, o.GetUID())
	case o.GetDeletionTimestamp() != nil:
		r.Kind = history.Going
		v.known[o.GetUID()] = r
	default:
		v.known[o.GetUID()] = r
	}
	v.recorder.Add(r)
	if pod, ok := o.(*corev1.Pod); ok && v.who == history.Cloud && r.Kind == history.Seen && terminal(pod) {
		end := r
		end.Kind, end.Unknown = history.Ended, false
		v.recorder.Add(end)
	}
	see(r, o)
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// counted reports whether a pod's status has a counter of its kubelet's. That of a pod which the
// device itself is about to run again has no counter, nor that of one which ran and which the
// kubelet rejects when it starts: it leaves the condition out. A pod that was never reported is
// Pending.
func counted(p *corev1.Pod) bool {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.ContainersReady })
	if i < 0 {
		return p.Status.Phase != corev1.PodRunning && !terminal(p)
	}
	return p.Status.Conditions[i].Reason != "Restarting"
}

// called is an object's name, except for a kubelet's events about a container that starts: their
// names are random.
func called(o metav1.Object) string {
	if e, ok := o.(*corev1.Event); ok && slices.Contains(startEvents, e.Reason) {
		return startEvent(e.InvolvedObject.Name, string(e.InvolvedObject.UID), e.Reason)
	}
	return o.GetName()
}

// startEvents are a kubelet's events about a container, in order.
var startEvents = []string{"Created", "Started"}

// startEvent names such an event, whose own name is drawn by the kubelet.
func startEvent(pod, uid, reason string) string { return pod + "." + uid + "." + reason }

// valueOf is the counter in an object. A kubelet has no counter in a pod's status: the time of the
// last change that it alone writes is as good, in whole seconds.
func valueOf(o any) int64 {
	text := ""
	switch o := o.(type) {
	case *corev1.Pod:
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.ContainersReady {
				return c.LastTransitionTime.Unix()
			}
		}
		text = o.Status.Message
	case *corev1.ConfigMap:
		text = o.Data["n"]
	case *corev1.Secret:
		text = string(o.Data["n"])
	case *corev1.Event:
		if called(o) != o.Name {
			return 1 // it reports the same again where it was killed in between
		}
		return int64(o.Count)
	case *unstructured.Unstructured:
		text = reportedValue(o)
	}
	n, _ := strconv.ParseInt(text, 10, 64) // an empty counter is 0
	return n
}
