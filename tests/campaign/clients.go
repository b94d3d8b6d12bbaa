package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// slot is a place on an edge in which pods of one name follow each other. The pod refers to a
// ConfigMap and a Secret of its name, whose values the slot counts up.
type slot struct {
	s     *system
	node  string
	name  string
	draw  *rand.Rand
	value int64
}

func newSlot(s *system, node string, n int) *slot {
	name := fmt.Sprintf("%s-%d", node, n)
	return &slot{s: s, node: node, name: name, draw: s.draw("slot " + name)}
}

func (c *slot) record(kind history.Kind, resource string, uid types.UID) history.Record {
	return history.Record{Kind: kind, Who: history.Cloud, Resource: resource, Name: namespace + "/" + c.name, UID: string(uid), Node: c.node}
}

// run works until ctx ends.
func (c *slot) run(ctx context.Context) {
	c.makeRefs(ctx)
	for ctx.Err() == nil {
		uid, ok := c.create(ctx)
		if !ok {
			pause(ctx, 500*time.Millisecond)
			continue
		}
		life := time.Duration(5+c.draw.IntN(20)) * time.Second
		if c.s.real != nil {
			life *= 3 // a container takes some time to start
		}
		end := time.Now().Add(life)
		for time.Now().Before(end) && ctx.Err() == nil {
			c.countUp(ctx)
			pause(ctx, time.Duration(100+c.draw.IntN(1500))*time.Millisecond)
		}
		if ctx.Err() == nil {
			c.remove(ctx, uid)
		}
	}
}

// makeRefs makes the ConfigMap and the Secret.
func (c *slot) makeRefs(ctx context.Context) {
	meta := metav1.ObjectMeta{Name: c.name, Namespace: namespace}
	for ; ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		_, err1 := c.s.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"n": "0"}}, metav1.CreateOptions{})
		_, err2 := c.s.client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"n": []byte("0")}}, metav1.CreateOptions{})
		if (err1 == nil || apierrors.IsAlreadyExists(err1)) && (err2 == nil || apierrors.IsAlreadyExists(err2)) {
			return
		}
	}
}

// countUp writes the next value into the ConfigMap or the Secret.
func (c *slot) countUp(ctx context.Context) {
	c.value++
	text := strconv.FormatInt(c.value, 10)
	resource := []string{"configmaps", "secrets"}[c.draw.IntN(2)]
	var uid types.UID
	r := c.record(history.Put, resource, "")
	r.Value = c.value
	write, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	r.At = c.s.recorder.Now()
	var err error
	if resource == "configmaps" {
		var o *corev1.ConfigMap
		o, err = c.s.client.CoreV1().ConfigMaps(namespace).Patch(write, c.name, types.MergePatchType, []byte(`{"data":{"n":"`+text+`"}}`), metav1.PatchOptions{})
		uid = o.GetUID()
	} else {
		var o *corev1.Secret
		o, err = c.s.client.CoreV1().Secrets(namespace).Patch(write, c.name, types.MergePatchType, []byte(`{"stringData":{"n":"`+text+`"}}`), metav1.PatchOptions{})
		uid = o.GetUID()
	}
	if err == nil {
		r.UID, r.End = string(uid), c.s.recorder.Now()
		c.s.recorder.Add(r)
	}
	// Without an answer the value may be there or not: it is read from the cloud then, which does
	// not lag.
}

// lost begins the names of pods that a restored cluster has not. No client ever touches them: that
// they are gone must come down by itself.
const lost = "lost-"

// lostPatience bounds how long devices are waited for that are to have pods which will be lost: one
// of them may be away.
const lostPatience = 10 * time.Second

// makeLost makes pods that a copy of etcd's data, made just now, does not have, and waits until the
// devices have them: only a pod that has come down can be left over.
func (s *system) makeLost(ctx context.Context, edges []*edge) {
	copied := s.recorder.Now()
	var all sync.WaitGroup
	for _, e := range edges {
		all.Go(func() {
			c := &slot{s: s, node: e.name, name: fmt.Sprintf("%s%s-%d", lost, e.name, copied.Milliseconds())}
			made, ok := c.create(ctx)
			for end := time.Now().Add(lostPatience); ok && ctx.Err() == nil && time.Now().Before(end); pause(ctx, 200*time.Millisecond) {
				have, _ := e.pods(ctx) // it may be down
				if slices.ContainsFunc(have, func(p corev1.Pod) bool { return p.UID == made }) {
					return
				}
			}
		})
	}
	all.Wait()
}

// create makes a pod and gives its uid.
func (c *slot) create(ctx context.Context) (types.UID, bool) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName: c.node, AutomountServiceAccountToken: new(false), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: "none:1", EnvFrom: []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.name}}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: c.name}}},
			}}},
		},
	}
	if c.s.real != nil {
		c.s.real.fit(pod)
	}
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	r := c.record(history.Put, "pods", "")
	r.At = c.s.recorder.Now()
	made, err := c.s.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // an attempt before that got no answer, or a restored cluster has it again
		made, err = c.s.client.CoreV1().Pods(namespace).Get(ctx, c.name, metav1.GetOptions{})
		if err == nil && made.DeletionTimestamp != nil {
			return "", false
		}
	}
	if err != nil {
		return "", false
	}
	r.UID, r.End = string(made.UID), c.s.recorder.Now()
	c.s.recorder.Add(r)
	return made.UID, true
}

// remove deletes the pod and waits until it is gone.
func (c *slot) remove(ctx context.Context, uid types.UID) {
	asked := false
	for ; ctx.Err() == nil; pause(ctx, 300*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, requestPatience)
		if !asked {
			// Recorded first: a node may have it before we have the answer.
			c.s.recorder.Add(c.record(history.Remove, "pods", uid))
			err := c.s.client.CoreV1().Pods(namespace).Delete(once, c.name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64(2)), Preconditions: &metav1.Preconditions{UID: &uid},
			})
			asked = err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
		}
		pod, err := c.s.client.CoreV1().Pods(namespace).Get(once, c.name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err), err == nil && pod.UID != uid:
			return
		case err == nil && pod.DeletionTimestamp == nil:
			asked = false // a restored cluster has forgotten it
		}
	}
}
