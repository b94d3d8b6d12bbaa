package campaign

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// finals reads the present content of all stores.
func (s *system) finals(ctx context.Context) ([]history.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestPatience)
	defer cancel()
	core := s.client.CoreV1()
	all, err := core.Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var found []history.Record
	add := func(who, node, resource string, o metav1.Object, value int64) {
		found = append(found, history.Record{
			Kind: history.Final, At: s.recorder.Now(), Who: who, Node: node, Resource: resource, Name: namespace + "/" + called(o), UID: string(o.GetUID()), Value: value,
		})
	}
	for _, p := range all.Items {
		add(history.Cloud, p.Spec.NodeName, "pods", &p, valueOf(&p))
		if p.DeletionTimestamp != nil {
			continue // objects that it refers to go with it
		}
		cm, err := core.ConfigMaps(namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading a ConfigMap: %w", err)
		}
		add(history.Cloud, p.Spec.NodeName, "configmaps", cm, valueOf(cm))
		secret, err := core.Secrets(namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading a Secret: %w", err)
		}
		add(history.Cloud, p.Spec.NodeName, "secrets", secret, valueOf(secret))
	}
	events, err := core.Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	for _, e := range events.Items {
		add(history.Cloud, "", "events", &e, valueOf(&e))
	}
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for _, n := range nodes.Items {
		add(history.Cloud, n.Name, "nodes", &metav1.ObjectMeta{Name: n.Name}, 0)
	}
	for resource, client := range s.reported {
		made, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", resource, err)
		}
		for _, o := range made.Items {
			add(history.Cloud, "", resource, &o, valueOf(&o))
		}
	}
	for _, e := range s.edges {
		if e.device != nil {
			if err := e.device.finals(ctx, all.Items, add); err != nil {
				return nil, err
			}
			continue
		}
		if err := s.finalsOf(ctx, e, add); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// finalsOf reads a device's content, by its own API.
func (s *system) finalsOf(ctx context.Context, e *edge, add func(who, node, resource string, o metav1.Object, value int64)) error {
	core := e.client.CoreV1()
	list, err := core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.name})
	if err != nil {
		return fmt.Errorf("listing the pods of %s: %w", e.name, err)
	}
	// The question itself counts, also where the answer is empty.
	add(e.name, e.name, "nodes", &metav1.ObjectMeta{Name: e.name}, 0)
	for _, p := range list.Items {
		add(e.name, e.name, "pods", &p, valueOf(&p))
		if p.DeletionTimestamp != nil {
			continue
		}
		// An unreadable object is missing.
		if cm, err := core.ConfigMaps(namespace).Get(ctx, p.Name, metav1.GetOptions{}); err == nil {
			add(e.name, e.name, "configmaps", cm, valueOf(cm))
		}
		var secret *corev1.Secret
		if secret, err = core.Secrets(namespace).Get(ctx, p.Name, metav1.GetOptions{}); err == nil {
			add(e.name, e.name, "secrets", secret, valueOf(secret))
		}
	}
	return nil
}
