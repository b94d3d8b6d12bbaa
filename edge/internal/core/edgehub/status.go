package edgehub

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/common/link"
)

// Status reports the state of the link.
func (h *Hub) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := h.status
	if s := h.current.Load(); s != nil && status.Linked {
		status.LastContact = s.lastContact()
	}
	return status
}

func (h *Hub) trying(server string) {
	h.metrics.tries.Inc()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Attempts++
	h.status.Server = server
	h.status.NextTry = time.Time{}
}

func (h *Hub) waiting(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.NextTry = until
}

func (h *Hub) linked(s *session) {
	info := s.conn.Info()
	h.metrics.connects.WithLabelValues(string(info.Transport)).Inc()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = Status{
		Linked: !s.rescue, Rescue: s.rescue, Server: reached(s.server, info.Remote), Transport: info.Transport, Instance: s.instance, Version: s.version, Epoch: s.epoch,
		Since: s.since, LastContact: s.since, ClockSkew: s.skew,
	}
	if s.rescue {
		h.status.Problem = fmt.Sprintf("edgecore %s and cloudcore %s have no version of the link's protocol in common: upgrade this device by a NodeOperation, which the link still carries", h.config.Version, s.version)
		h.status.LastError = "no common version of the link's protocol"
	}
	h.logged = ""
}

// reached returns the address that a link to server has reached. Transports have ports of their
// own; remote is the address if there can be no proxy in between, as there can be for TCP.
func reached(server string, remote net.Addr) string {
	host, _, err := net.SplitHostPort(server)
	if udp, ok := remote.(*net.UDPAddr); ok && err == nil {
		return net.JoinHostPort(host, strconv.Itoa(udp.Port))
	}
	return server
}

func (h *Hub) unlinked(s *session, err error) {
	h.metrics.lost(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Linked, h.status.Rescue = false, false
	h.status.Since = time.Now()
	h.status.LastContact = s.lastContact()
}

// troubled records the failure of an attempt or a session, and logs it if it is new. A device may
// be offline for months: the same failure is logged once an hour.
func (h *Hub) troubled(ctx context.Context, p *pace, server string, err error) {
	problem := problem(p, server, err)
	_, next := p.pick()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.LastError = err.Error()
	h.status.Problem = problem
	h.status.NextTry = next
	kind := problem + errorKind(err)
	verbosity := 0
	if now := time.Now(); kind == h.logged && now.Sub(h.when) < time.Hour {
		verbosity = 3
	} else {
		h.logged, h.when = kind, now
	}
	klog.FromContext(ctx).V(verbosity).Info("No link to the cloud",
		"server", server, "err", err, "problem", problem, "attempts", h.status.Attempts, "next", next)
}

// problem returns the user's next step, "" if waiting may be enough.
func problem(p *pace, server string, err error) string {
	if p.taken() {
		return fmt.Sprintf("the cloud prefers another session of this node, %d times in a row: another device uses the same node name and certificate",
			p.replaced)
	}
	if why := distrust(server, err); why != "" {
		return why
	}
	if host, _, bad := net.SplitHostPort(server); bad == nil && unresolved(err) {
		return fmt.Sprintf("the name %s does not resolve: check /etc/resolv.conf and the name server, or put an address into modules.edgeHub.servers", host)
	}
	end, ok := errors.AsType[*link.CloseError](err)
	if !ok || end.Code.Reconnect() {
		return ""
	}
	retry := fmt.Sprintf("edgecore asks again about every %v", p.config.SlowRetry)
	switch end.Code {
	case link.CloseVersion:
		return fmt.Sprintf("edgecore and the cloudcore at %s speak different protocols: upgrade the older one (edgecore tries whether another replica "+
			"is behind that address, and then %v apart)", server, p.config.SlowRetry)
	case link.CloseGone:
		return fmt.Sprintf("the cloud has removed this node: join it again if it is to stay (%s)", retry)
	}
	return fmt.Sprintf("the cloud refuses this node: %s (%s; join again if the certificate is wrong)", end.Reason, retry)
}

// unresolved reports whether a dial failed since the host name does not exist, or no name server
// listens at the address that resolv.conf has: neither ends by waiting.
func unresolved(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound || strings.Contains(err.Error(), ": no such host") ||
		slices.ContainsFunc(strings.Split(err.Error(), "; "), func(text string) bool { // of each transport
			_, lookup, _ := strings.Cut(text, "lookup ")
			_, answer, _ := strings.Cut(lookup, ":53: ")
			return strings.Contains(answer, "connection refused")
		})
}

// distrust returns the setting to correct if the handshake failed because of the certificates;
// otherwise "". A transport may pass on only the text of the error.
func distrust(server string, err error) string {
	text := err.Error()
	switch {
	case errors.As(err, new(x509.HostnameError)), strings.Contains(text, "cannot validate certificate for"), strings.Contains(text, "x509: certificate is valid for"):
		return fmt.Sprintf("cloudcore's certificate does not hold for %s: put that name or address into `advertise` of cloudcore.yaml again, or one that is there into "+
			"modules.edgeHub.servers of this device's edgecore.yaml", server)
	case errors.As(err, new(x509.UnknownAuthorityError)), strings.Contains(text, "certificate signed by unknown authority"):
		return fmt.Sprintf("%s shows a certificate of an authority that this device does not trust: where cloudcore's CA was replaced while the device was away, make a token "+
			"(cloudcore token create --node NAME) and run edgecore join --force --token-file FILE", server)
	}
	return ""
}

// errorKind is the part of an error that stays the same when it repeats itself: ports and durations
// in its text change.
func errorKind(err error) string {
	if end, ok := errors.AsType[*link.CloseError](err); ok {
		return fmt.Sprint(end.Code, end.Remote)
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T %v", err, err)
		}
		err = inner
	}
}

// Describe implements prometheus.Collector.
func (h *Hub) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range h.metrics.collectors() {
		c.Describe(ch)
	}
	ch <- h.metrics.linked
}

// Collect implements prometheus.Collector.
func (h *Hub) Collect(ch chan<- prometheus.Metric) {
	for _, c := range h.metrics.collectors() {
		c.Collect(ch)
	}
	linked := 0.0
	if h.current.Load() != nil {
		linked = 1
	}
	ch <- prometheus.MustNewConstMetric(h.metrics.linked, prometheus.GaugeValue, linked)
}
