// Package passthrough gives applications network ports of the device: for a pod that asks for one
// it switches the port on, and makes the NetworkAttachmentDefinition by which Multus hands the port
// over.
//
// It owns the NetworkAttachmentDefinitions that it has made, which it remembers over restarts: one
// for a port in a namespace, shared by the pods that use it, removed with the last of them. It
// refuses to make one offline, or if the cluster lacks the kind, and reports that to the pod; it
// never touches one that it did not make, and passes through no port that edgecore.yaml does not
// list, that is on the path to the cloud, or that has an address of the Node. Wanted is pure; the
// rest is of the agent's own.
package passthrough

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Name is the module's.
const Name message.Name = "passthrough"

const (
	resync = 5 * time.Minute
	// maxPorts bounds the ports of one pod; more are refused.
	maxPorts = 16
	// ours marks the objects of this package.
	ours = "skerry.io/passthrough-node"
	// requestTimeout bounds one request to the cloud.
	requestTimeout = 20 * time.Second
)

// Ports switches a port on: netif.Up.
type Ports func(name string) error

// Guard returns the user of a port that no pod may take; "" without one. nodes are the
// addresses of the Node, way is the remote address of the last link, which may be invalid.
type Guard func(port string, nodes []netip.Addr, way netip.Addr) (why string, err error)

// Config configures the agent.
type Config struct {
	NodeName string
	API      *rest.Config
	Events   func(ctx context.Context) (agent.Recorder, error)
	Ports    Ports
	// Allowed are the ports that pods may take, of edgecore.yaml. Guard has the last word.
	Allowed []string
	Guard   Guard
	Memory  agent.Memory
}

// Attachment is a port in a namespace: one NetworkAttachmentDefinition.
type Attachment struct{ Namespace, Name, Port string }

// Key is the attachment as memory and messages have it.
func (a Attachment) Key() string { return a.Namespace + "/" + a.Name }

// Wanted are the ports that pods ask for, in order, and by which pods: running or not, but not at
// their end. Requests for an invalid port, or for one that pods may not take, are in refused.
func Wanted(node string, allowed []string, pods []*corev1.Pod) (wanted map[Attachment][]*corev1.Pod, refused map[*corev1.Pod]error) {
	wanted, refused = map[Attachment][]*corev1.Pod{}, map[*corev1.Pod]error{}
	for _, p := range pods {
		text, asks := p.Annotations[v1alpha1.EthernetAnnotation]
		if !asks || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		ports := strings.Split(text, ",")
		if len(ports) > maxPorts {
			refused[p] = fmt.Errorf("%s: a pod may ask for %d ports at most", v1alpha1.EthernetAnnotation, maxPorts)
			continue
		}
		for _, port := range ports {
			port = strings.TrimSpace(port)
			name := "host-" + port + "-" + node
			// With a hyphen in it, host-a-b-c could be a port of node c or of node b-c.
			if len(port) == 0 || len(port) > 15 || strings.ContainsAny(port, "/-") || len(validation.IsDNS1123Subdomain(name)) > 0 {
				refused[p] = fmt.Errorf("%s: %.32q is no port: the name of a network interface, in lower case and without hyphens, is", v1alpha1.EthernetAnnotation, port)
				continue
			}
			if !slices.Contains(allowed, port) {
				refused[p] = fmt.Errorf("%s: pods may not take %s: modules.passthrough.ports of this device's edgecore.yaml does not list it", v1alpha1.EthernetAnnotation, port)
				continue
			}
			a := Attachment{p.Namespace, name, port}
			wanted[a] = append(wanted[a], p)
		}
	}
	return wanted, refused
}

// New makes the agent.
func New(c Config) *agent.Module {
	kit := agent.Config{Name: Name, NodeName: c.NodeName, API: c.API, Events: c.Events, Resync: resync}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		pods, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, agent.Selection{Fields: "spec.nodeName=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		client, err := dynamic.NewForConfig(c.API)
		if err != nil {
			return nil, fmt.Errorf("making the client for NetworkAttachmentDefinitions: %w", err)
		}
		made, err := c.Memory.Load()
		if err != nil {
			return nil, err
		}
		nodes, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{}, agent.Selection{Fields: "metadata.name=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		s := &state{config: c, run: r, nodes: nodes, client: client, made: made, reported: map[string]string{}, sure: map[string]bool{}}
		return func(ctx context.Context) (time.Duration, error) { return 0, s.sync(ctx, pods.List()) }, nil
	}
	return agent.New(kit)
}

// state is of one run.
type state struct {
	config   Config
	run      *agent.Run
	nodes    *agent.Objects[*corev1.Node]
	client   dynamic.Interface
	made     map[string][]byte // attachments that are ours, or were about to be, by key
	sure     map[string]bool   // those that this run has seen to be there
	reported map[string]string // the last error of each pod, by key; bounded by the pods
}

func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
}

func (s *state) sync(ctx context.Context, pods []*corev1.Pod) error {
	wanted, refused := Wanted(s.config.NodeName, s.config.Allowed, pods)
	var errs []error
	keep := map[string]bool{}
	for a, by := range wanted {
		keep[a.Key()] = true
		if err := s.ensure(ctx, a); err != nil {
			err = fmt.Errorf("port %s for %s: %w", a.Port, names(by), err)
			errs = append(errs, err)
			for _, p := range by {
				refused[p] = err
			}
		}
	}
	for key := range s.made {
		if !keep[key] {
			errs = append(errs, s.remove(ctx, key))
		}
	}
	s.tell(pods, refused)
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return errors.Join(errs...)
}

func names(pods []*corev1.Pod) string {
	all := make([]string, len(pods))
	for i, p := range pods {
		all[i] = "pod " + p.Namespace + "/" + p.Name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// ensure switches the port on, and makes the definition where it is not known to be there.
func (s *state) ensure(ctx context.Context, a Attachment) error {
	if s.sure[a.Key()] {
		return nil
	}
	switch why, err := s.config.Guard(a.Port, s.addresses(), s.run.Link().Link.Address); {
	case err != nil:
		return err
	case why != "":
		return fmt.Errorf("no pod may take it: %s", why)
	}
	if err := s.config.Ports(a.Port); err != nil {
		return err
	}
	if !s.run.Link().Up {
		return fmt.Errorf("the NetworkAttachmentDefinition %s can't be made while this device is offline", a.Key())
	}
	// Remembered before it is made, so that it is found again after a crash here.
	if _, known := s.made[a.Key()]; !known {
		if err := s.config.Memory.Save(ctx, map[string][]byte{a.Key(): []byte(a.Port)}); err != nil {
			return err
		}
		s.made[a.Key()] = []byte(a.Port)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	at := s.client.Resource(definitions()).Namespace(a.Namespace)
	_, err := at.Create(ctx, definition(a, s.config.NodeName), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		there, err := at.Get(ctx, a.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the NetworkAttachmentDefinition %s: %w", a.Key(), err)
		}
		if there.GetLabels()[ours] != label(s.config.NodeName) {
			if err := s.forget(ctx, a.Key()); err != nil {
				return err
			}
			return fmt.Errorf("there is a NetworkAttachmentDefinition %s already, and Skerry did not make it", a.Key())
		}
	case apierrors.IsNotFound(err):
		return errors.Join(s.forget(ctx, a.Key()), errors.New("the cluster has no NetworkAttachmentDefinitions: install Multus (CRD network-attachment-definitions.k8s.cni.cncf.io)"))
	case err != nil:
		return fmt.Errorf("making the NetworkAttachmentDefinition %s: %w", a.Key(), err)
	}
	s.sure[a.Key()] = true
	return nil
}

// addresses are the Node's.
func (s *state) addresses() (all []netip.Addr) {
	for _, n := range s.nodes.List() {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				all = append(all, ip.Unmap())
			}
		}
	}
	return all
}

func (s *state) forget(ctx context.Context, key string) error {
	if err := s.config.Memory.Save(ctx, map[string][]byte{key: nil}); err != nil {
		return err
	}
	delete(s.made, key)
	delete(s.sure, key)
	return nil
}

// remove deletes a definition that no pod uses any more: with the next link, if it is down.
func (s *state) remove(ctx context.Context, key string) error {
	delete(s.sure, key)
	if !s.run.Link().Up {
		return nil // a link wakes us
	}
	ask, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	namespace, name, _ := strings.Cut(key, "/")
	at := s.client.Resource(definitions()).Namespace(namespace)
	there, err := at.Get(ask, name, metav1.GetOptions{})
	if err == nil && there.GetLabels()[ours] == label(s.config.NodeName) {
		uid := there.GetUID()
		err = at.Delete(ask, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the NetworkAttachmentDefinition %s: %w", key, err)
	}
	return s.forget(ctx, key)
}

// tell reports on pods why they have no port, once for each reason.
func (s *state) tell(pods []*corev1.Pod, refused map[*corev1.Pod]error) {
	now := map[string]string{}
	for _, p := range pods {
		err := refused[p]
		if err == nil {
			continue
		}
		key := p.Namespace + "/" + p.Name
		now[key] = err.Error()
		if recorder := s.run.Recorder(); recorder != nil && s.reported[key] != now[key] {
			recorder.Event(p, corev1.EventTypeWarning, "EthernetRefused", err.Error())
		}
	}
	s.reported = now
}

func label(node string) string {
	if len(node) > validation.LabelValueMaxLength {
		return strings.TrimRight(node[:validation.LabelValueMaxLength], "-._")
	}
	return node
}

// definition is of the CNI plugin host-device, which moves the port into the pod.
func definition(a Attachment, node string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": a.Name, "namespace": a.Namespace, "labels": map[string]any{ours: label(node)}},
		"spec":     map[string]any{"config": fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"host-device","device":%q}`, a.Name, a.Port)},
	}}
}
