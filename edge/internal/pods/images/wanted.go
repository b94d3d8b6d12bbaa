package images

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Wanted are the images of the pods of a device and of its applications. A pod that has ended
// permanently does not need its images, by Kubernetes' own rules; one that is to run always may be
// started again here.
func Wanted(pods []corev1.Pod, apps []v1alpha1.EdgeApp) []string {
	var all []string
	for i := range pods {
		p := &pods[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if ended && p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
			continue
		}
		for _, c := range p.Spec.InitContainers {
			all = append(all, c.Image)
		}
		for _, c := range p.Spec.Containers {
			all = append(all, c.Image)
		}
		for _, v := range p.Spec.Volumes {
			if v.Image != nil {
				all = append(all, v.Image.Reference)
			}
		}
	}
	for _, app := range apps {
		for _, c := range app.Spec.Content {
			if app.Spec.Active() && c.Type == v1alpha1.ContentContainerImage {
				all = append(all, c.Source)
			}
		}
	}
	return all
}

// askedOf returns functions that list the pods of a node and the wanted images; their errors mean
// that they are unknown.
func askedOf(config *rest.Config, node string, withApps bool) (pods func(context.Context) ([]corev1.Pod, error), wanted func(context.Context) ([]string, error), err error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making the client for the images of pods: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making the client for the images of applications: %w", err)
	}
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0"}
	pods = func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing the pods of this device: %w", err)
		}
		return list.Items, nil
	}
	wanted = func(ctx context.Context) ([]string, error) {
		items, err := pods(ctx)
		if err != nil {
			return nil, err
		}
		var apps []v1alpha1.EdgeApp
		if withApps {
			if apps, err = listApps(ctx, dyn.Resource(v1alpha1.Resource(v1alpha1.EdgeApps))); err != nil {
				return nil, err
			}
		}
		return Wanted(items, apps), nil
	}
	return pods, wanted, nil
}

// listApps returns the applications in the device's cache.
func listApps(ctx context.Context, client dynamic.ResourceInterface) ([]v1alpha1.EdgeApp, error) {
	list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing applications: %w", err)
	}
	all := make([]v1alpha1.EdgeApp, len(list.Items))
	for i, item := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &all[i]); err != nil {
			return nil, fmt.Errorf("reading application %s: %w", item.GetName(), err)
		}
	}
	return all, nil
}
