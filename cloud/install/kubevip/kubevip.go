// Package kubevip puts kube-vip into a trial cluster and takes it away again: a load balancer for
// Services, from a range of the LAN's addresses.
//
// It owns the ConfigMap kubevip, made of an interface and a range, and which objects belong to it
// (manifests/kube-vip). It refuses ranges that hold an address of a node. Delete may be repeated,
// and gives the Services' addresses back. Everything is done as the administrator who asks;
// functions may be called from any goroutine.
package kubevip

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/manifests"
)

const (
	namespace = "kube-system"
	configMap = "kubevip"
	manager   = "cloudcore-kube-vip"
	// The programs that announce addresses, and choose them.
	daemonSet, deployment = "DaemonSet", "Deployment"
	// class is the loadBalancerClass of Services for kube-vip alone.
	class = "kube-vip.io/kube-vip-class"
	// vipHost is kube-vip's annotation for the node that announces the address.
	vipHost = "kube-vip.io/vipHost"
	// addresses is the annotation by which a Service asks for addresses, and in which the cloud
	// provider writes those that it gives, marked by its label.
	addresses     = "kube-vip.io/loadbalancerIPs"
	providerLabel = "implementation"
	providerName  = "kube-vip"
	// configHash on the pods makes them begin again when the ConfigMap changed.
	configHash = "skerry.io/config"
)

// Client is the cluster, as the administrator may use it.
type Client struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
}

// objects are those of manifests/kube-vip and the ConfigMap, in the order in which they are
// applied. images are by kind.
func objects(data, images map[string]string) ([]*unstructured.Unstructured, error) {
	own := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": configMap, "namespace": namespace}}}
	if err := unstructured.SetNestedStringMap(own.Object, data, "data"); err != nil {
		return nil, fmt.Errorf("making the ConfigMap: %w", err)
	}
	sum := sha256.Sum256(fmt.Append(nil, data))
	all := []*unstructured.Unstructured{own}
	for _, file := range []string{"account.yaml", "provider.yaml", "daemonset.yaml"} {
		raw, err := manifests.FS.ReadFile("kube-vip/" + file)
		if err != nil {
			return nil, fmt.Errorf("reading the manifests: %w", err)
		}
		for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
			o := &unstructured.Unstructured{}
			if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("reading %s: %w", file, err)
			}
			if kind := o.GetKind(); kind == daemonSet || kind == deployment {
				containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				if err != nil {
					return nil, fmt.Errorf("reading %s: %w", file, err)
				}
				containers[0].(map[string]any)["image"] = images[kind]
				if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
					return nil, fmt.Errorf("reading %s: %w", file, err)
				}
				if err := unstructured.SetNestedField(o.Object, hex.EncodeToString(sum[:8]), "spec", "template", "metadata", "annotations", configHash); err != nil {
					return nil, fmt.Errorf("reading %s: %w", file, err)
				}
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// Apply installs kube-vip into the cluster, or updates it. It returns the ranges that addresses are
// taken from.
func Apply(ctx context.Context, c Client, o Options) (ranges string, err error) {
	if err := checkInterface(o.Interface); err != nil {
		return "", err
	}
	used, err := nodeAddresses(ctx, c.Kubernetes)
	if err != nil {
		return "", err
	}
	if ranges, err = o.Ranges(used); err != nil {
		return "", err
	}
	all, err := objects(map[string]string{"interface": o.Interface, "range-global": ranges}, map[string]string{daemonSet: o.Image, deployment: o.ProviderImage})
	if err != nil {
		return "", err
	}
	for _, object := range all {
		if object.GetKind() == deployment && o.ProviderImage == "" {
			continue
		}
		raw, err := json.Marshal(object)
		if err != nil {
			return "", fmt.Errorf("encoding %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		force := true
		if _, err := c.resource(object).Patch(ctx, object.GetName(), types.ApplyPatchType, raw, metav1.PatchOptions{FieldManager: manager, Force: &force}); err != nil {
			return "", fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return ranges, nil
}

// Delete removes kube-vip, the announcing program first, and releases the Services' addresses. It
// returns how many objects there were.
func Delete(ctx context.Context, c Client) (deleted int, err error) {
	all, err := objects(nil, nil)
	if err != nil {
		return 0, err
	}
	foreground := metav1.DeletePropagationForeground
	for _, object := range slices.Backward(all) {
		err := c.resource(object).Delete(ctx, object.GetName(), metav1.DeleteOptions{PropagationPolicy: &foreground})
		if err != nil && !apierrors.IsNotFound(err) {
			return deleted, fmt.Errorf("deleting %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if err == nil {
			deleted++
		}
	}
	return deleted, release(ctx, c.Kubernetes)
}

// release takes the addresses that kube-vip gave out of the status of Services.
func release(ctx context.Context, c kubernetes.Interface) error {
	list, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		if !served(s) {
			continue
		}
		clean := s.DeepCopy()
		clean.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if _, err := c.CoreV1().Services(s.Namespace).UpdateStatus(ctx, clean, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taking the address from Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		gone := map[string]any{vipHost: nil}
		change := map[string]any{"metadata": map[string]any{"annotations": gone}}
		if s.Labels[providerLabel] == providerName { // the provider chose it; a person's choice stays
			gone[addresses] = nil
			change["metadata"].(map[string]any)["labels"] = map[string]any{providerLabel: nil}
			change["spec"] = map[string]any{"loadBalancerIP": nil}
		}
		raw, err := json.Marshal(change)
		if err != nil {
			return fmt.Errorf("encoding a change: %w", err)
		}
		if _, err := c.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: manager}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taking kube-vip's annotations from Service %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

// served reports whether a Service has its address from kube-vip.
func served(s *corev1.Service) bool {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass != class {
		return false
	}
	_, announced := s.Annotations[vipHost]
	return announced || s.Labels[providerLabel] == providerName
}

func nodeAddresses(ctx context.Context, c kubernetes.Interface) (map[netip.Addr]string, error) {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	used := map[netip.Addr]string{}
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				used[ip.Unmap()] = "node " + n.Name
			}
		}
	}
	return used, nil
}

// resource is where an object of ours is.
func (c Client) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	plural := map[string]string{
		"ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
		"Role": "roles", "RoleBinding": "rolebindings", "DaemonSet": "daemonsets", "Deployment": "deployments",
	}[o.GetKind()]
	gvk := o.GroupVersionKind()
	at := c.Dynamic.Resource(schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: plural})
	if o.GetNamespace() == "" {
		return at
	}
	return at.Namespace(o.GetNamespace())
}
