package endpoints

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/endpointslice/trafficdist"
)

// Service is the part of a Service that matters for its slices.
type Service struct {
	// Distribution is spec.trafficDistribution; "" if unset.
	Distribution string
	// PublishNotReady is spec.publishNotReadyAddresses.
	PublishNotReady bool
}

// Local is this device as the endpoint of a Service that it implements; otherwise the zero value.
type Local struct {
	Address netip.AddrPort
	// Port is the name of the one port with that endpoint; others are skipped.
	Ports map[corev1.Protocol]bool
}

// state is the input of a correction.
type state struct {
	node    string
	pods    map[types.UID]PodStatus // of this device
	service Service
	local   *Local
	peers   Knowledge
}

// correct changes a slice by this device's data of its endpoints.
func correct(s *discoveryv1.EndpointSlice, k state) {
	if k.local != nil {
		stand(s, k)
		return
	}
	kept := s.Endpoints[:0]
	for i := range s.Endpoints {
		e := s.Endpoints[i]
		if k.correctEndpoint(&e, s.AddressType) {
			kept = append(kept, e)
		}
	}
	s.Endpoints = kept
	var distribution *string
	if k.service.Distribution != "" {
		distribution = &k.service.Distribution
	}
	trafficdist.ReconcileHints(distribution, nil, []*discoveryv1.EndpointSlice{s}, nil)
}

// correctEndpoint returns false for an endpoint whose address is known to be another's by now.
func (k state) correctEndpoint(e *discoveryv1.Endpoint, family discoveryv1.AddressType) bool {
	if e.NodeName == nil {
		return true // no device reports on it
	}
	device := *e.NodeName
	contact := Met
	if device != k.node {
		contact = k.peers.Contact(device)
	}
	switch contact {
	case Unmet:
		return true
	case Dead:
		setConditions(e, false, false, e.Conditions.Terminating != nil && *e.Conditions.Terminating)
		return true
	}
	if device != k.node && family != discoveryv1.AddressTypeFQDN && !k.peers.Reaches(device, family == discoveryv1.AddressTypeIPv4) {
		// The device is alive, but unreachable by this family: it lost its address.
		setConditions(e, false, false, e.Conditions.Terminating != nil && *e.Conditions.Terminating)
		return true
	}
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.UID == "" {
		return true
	}
	w, known := k.pods[e.TargetRef.UID], true
	if device == k.node {
		_, known = k.pods[e.TargetRef.UID]
	} else {
		w, known = k.peers.PodStatus(device, e.TargetRef.UID)
	}
	if !known {
		if !k.service.PublishNotReady {
			setConditions(e, false, false, true)
		}
		return true
	}
	addresses := ofFamily(w.Addresses, family)
	if len(addresses) == 0 {
		return false // it has no address yet in this boot: the old one may be another pod's now
	}
	e.Addresses = addresses
	if !k.service.PublishNotReady {
		setConditions(e, w.Ready && !w.Terminating, w.Ready, w.Terminating)
	}
	return true
}

func setConditions(e *discoveryv1.Endpoint, ready, serving, terminating bool) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func ofFamily(all []netip.Addr, family discoveryv1.AddressType) []string {
	for _, a := range all {
		if a.Is4() == (family == discoveryv1.AddressTypeIPv4) {
			return []string{a.String()} // a slice has one address an endpoint: more were never used (discovery/v1, Endpoint.Addresses)
		}
	}
	return nil
}

// stand makes this device the only endpoint of a slice.
func stand(s *discoveryv1.EndpointSlice, k state) {
	s.Endpoints = nil
	if !k.local.Address.IsValid() || (s.AddressType == discoveryv1.AddressTypeIPv4) != k.local.Address.Addr().Is4() {
		return
	}
	var ports []discoveryv1.EndpointPort
	for _, p := range s.Ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if !k.local.Ports[protocol] || p.Name != nil && *p.Name == "metrics" {
			continue
		}
		port := int32(k.local.Address.Port())
		p.Port = &port
		ports = append(ports, p)
	}
	s.Ports = ports
	yes, no := true, false
	s.Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{k.local.Address.Addr().String()}, NodeName: &k.node,
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
	}}
}

// serviceOf is the Service that a slice is of.
func serviceOf(s metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: s.GetNamespace(), Name: s.GetLabels()[discoveryv1.LabelServiceName]}
}
