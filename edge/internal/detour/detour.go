// Package detour leads pods that ask for the cluster's API, with their ordinary in-cluster configuration, to the API of this device.
//
// It owns the question where pods look for the cluster's API: the addresses of the Service default/kubernetes, as the kubelet tells them to pods. It refuses IPv6
// addresses, which it leaves as they are. It computes what is to be diverted; a Diverter makes it so. Agent is one goroutine, and the informer's.
package detour

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/kernel/divert"
)

// Name is the module's.
const Name message.Name = "detour"

const (
	namespace, service = metav1.NamespaceDefault, "kubernetes"
	portName           = "https"
	// again is how often the kernel is looked at although nothing was told: others write to the same tables. retry is after a failure.
	again, retry = time.Minute, 10 * time.Second
)

// Diverter makes the kernel divert: *divert.Driver.
type Diverter interface {
	Apply(want []divert.Rule) error
}

// Config is what an Agent needs.
type Config struct {
	// API leads to the edge API.
	API    *rest.Config
	Divert Diverter
	// Listen is where the edge API serves pods. The zero value: pods are not led there, and what an earlier run has left goes.
	Listen netip.AddrPort
	// Serve is told the addresses under which pods know the API, before anything is led there: its certificate must hold for them.
	Serve func(addresses []netip.Addr) error
}

// Agent is the module.
type Agent struct{ config Config }

// New makes an Agent. It starts nothing.
func New(config Config) *Agent { return &Agent{config} }

// Name implements beehive.Module.
func (*Agent) Name() message.Name { return Name }

// Run implements beehive.Module. What is diverted stays so when it ends.
func (a *Agent) Run(ctx context.Context, port *beehive.Port) error {
	if !a.config.Listen.IsValid() {
		port.Ready()
		if err := a.config.Divert.Apply(nil); err != nil {
			klog.FromContext(ctx).Error(err, "What led pods to the device's API could not be taken away; they may find nobody there")
		}
		<-ctx.Done()
		return nil
	}
	client, err := kubernetes.NewForConfig(a.config.API)
	if err != nil {
		return fmt.Errorf("making the client for the cluster's Service: %w", err)
	}
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, service)
	informer := cache.NewSharedInformer(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "services", namespace, only), &corev1.Service{}, 0)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(_, _ any) { tell() }, DeleteFunc: func(any) { tell() },
	}); err != nil {
		return fmt.Errorf("following the cluster's Service: %w", err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	defer func() { <-ended }()
	port.Ready()

	log := klog.FromContext(ctx)
	var told string
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
		wait := again
		switch err := a.apply(informer); {
		case err == nil:
			told = ""
		case errors.Is(err, errUnknown):
			wait = retry // a device that has never had a link
		default:
			wait = retry
			if text := err.Error(); text != told { // the same once only
				told = text
				log.Error(err, "Pods can't be led to the device's API; set modules.edgeAPI.pods to false if they need not be")
			}
		}
		timer.Reset(wait)
	}
}

// errUnknown: the Service is not known yet, or is gone for a moment. What was led stays led.
var errUnknown = errors.New("the Service default/kubernetes is not known yet")

func (a *Agent) apply(informer cache.SharedInformer) error {
	o, ok, err := informer.GetStore().GetByKey(namespace + "/" + service)
	if err != nil || !ok {
		return errors.Join(errUnknown, err)
	}
	s, ok := o.(*corev1.Service)
	if !ok {
		return fmt.Errorf("the Service is a %T", o)
	}
	rules := Plan(s, a.config.Listen)
	if len(rules) == 0 {
		return fmt.Errorf("the Service default/kubernetes has no IPv4 address with a TCP port")
	}
	addresses := make([]netip.Addr, len(rules))
	for i, r := range rules {
		addresses[i] = r.From.Addr()
	}
	if err := a.config.Serve(addresses); err != nil {
		return err
	}
	return a.config.Divert.Apply(rules)
}

// Plan is what leads the Service's clients to listen: one rule for each address and the port that pods are told (KUBERNETES_SERVICE_PORT: the one called https, else
// the first).
func Plan(s *corev1.Service, listen netip.AddrPort) []divert.Rule {
	var at uint16
	for i, p := range s.Spec.Ports {
		if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && p.Port > 0 && (at == 0 || p.Name == portName) {
			at = uint16(s.Spec.Ports[i].Port)
		}
	}
	if at == 0 {
		return nil
	}
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	var rules []divert.Rule
	for _, text := range all {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() { // "None" is no address
			rules = append(rules, divert.Rule{From: netip.AddrPortFrom(ip, at), To: listen})
		}
	}
	return rules
}
