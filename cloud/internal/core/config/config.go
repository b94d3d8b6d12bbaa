// Package config is cloudcore.yaml: its fields, their defaults and their rules.
//
// It owns the names that an operator writes. It refuses invalid values, all of them at once. It
// starts no goroutine and reads no file: cloud/app does. A Config is filled once and then only
// read.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/pki"
)

// Kind is the kind of the file.
const Kind = "CloudCore"

// Config is cloudcore.yaml.
type Config struct {
	config.TypeMeta
	// Kubeconfig leads to kube-apiserver; "" means the service account of the pod that
	// cloudcore runs in.
	Kubeconfig string `json:"kubeconfig"`
	// Advertise are the names and addresses under which edges reach cloudcore; its serving
	// certificate holds for these.
	Advertise []string `json:"advertise"`
	// Impersonation is constrained (KEP-5284, Kubernetes 1.36 and later) or classic. The
	// RBAC must fit.
	Impersonation string `json:"impersonation"`
	// Approver approves certificates in this process.
	Approver Approver `json:"approver"`
	Hub      Hub      `json:"hub"`
	// Relay is the way up from the edges.
	Relay Relay `json:"relay"`
	// Publish is the way down to the edges.
	Publish Publish `json:"publish"`
	// Devices is the one port by which devices come, for links and to join.
	Devices Devices `json:"devices"`
	Join    Join    `json:"join"`
	Tunnel  Tunnel  `json:"tunnel"`
	// Usage serves metrics.k8s.io to kube-apiserver's aggregator. It needs the tunnel.
	Usage Listen `json:"usage"`
	// Subresources serves subresources.skerry.io to kube-apiserver's aggregator, for `kubectl
	// skerry`. It needs the tunnel.
	Subresources Listen `json:"subresources"`

	VIP VIP `json:"vip"`
	// Artefacts are the programs that devices may fetch.
	Artefacts Artefacts `json:"artefacts"`
	// Logs is the destination of the applications' output.
	Logs    Logs    `json:"logs"`
	Health  Listen  `json:"health"`
	Metrics Metrics `json:"metrics"`
	Log     Log     `json:"log"`
}

// Approver is the account that approves certificates, where it shares cloudcore's process.
type Approver struct {
	// Kubeconfig leads to kube-apiserver as the account cloudcore-approver; "": another process
	// approves, `cloudcore approve`.
	Kubeconfig string `json:"kubeconfig"`
}

// Metrics configures /metrics of health.listen.
type Metrics struct {
	// Nodes bounds the nodes with series of their own, some 40 each; 0: no node.
	Nodes int `json:"nodes"`
	Sink
}

// Sink is an OTLP/HTTP receiver.
type Sink struct {
	Endpoint  string `json:"endpoint"`  // its URL; "" for none
	CAFile    string `json:"caFile"`    // who signed its certificate; "" means the system's authorities
	TokenFile string `json:"tokenFile"` // a bearer token for it; "" for none
}

func (s *Sink) validate(at *field.Path, example string) field.ErrorList {
	var errs field.ErrorList
	if u, err := url.Parse(s.Endpoint); s.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, field.Invalid(at.Child("endpoint"), s.Endpoint, "must be a URL such as "+example))
	}
	for name, file := range map[string]string{"caFile": s.CAFile, "tokenFile": s.TokenFile} {
		if file != "" && !filepath.IsAbs(file) {
			errs = append(errs, field.Invalid(at.Child(name), file, "must be an absolute path"))
		}
	}
	return errs
}

// Log sets the verbosity of standard error.
type Log struct {
	Verbosity int    `json:"verbosity"` // 0 to 10, as klog's -v
	Format    string `json:"format"`    // text or json
}

// Logs is the sink of the applications' output.
type Logs struct {
	Sink
	// BatchesPerSecond bounds one node; a batch has 32 KiB at most.
	BatchesPerSecond int `json:"batchesPerSecond"`
}

func (l *Logs) validate(at *field.Path) field.ErrorList {
	errs := l.Sink.validate(at, "https://collector:4318/v1/logs")
	if l.BatchesPerSecond < 1 || l.BatchesPerSecond > 1000 {
		errs = append(errs, field.Invalid(at.Child("batchesPerSecond"), l.BatchesPerSecond, "must be 1 to 1000"))
	}
	return errs
}

// Artefacts is a repository of signed programs (TUF).
type Artefacts struct {
	Dir string `json:"dir"` // an absolute path; "" for none
}

func (a *Artefacts) validate(at *field.Path) field.ErrorList {
	if a.Dir != "" && !filepath.IsAbs(a.Dir) {
		return field.ErrorList{field.Invalid(at.Child("dir"), a.Dir, "must be an absolute path")}
	}
	return nil
}

// Listen is one listener.
type Listen struct {
	Listen string `json:"listen"` // [address]:port; "" for none
}

// Join is the server where devices without a certificate join, and renew an expired one.
type Join struct {
	Listen
	// RenewEnded is how long after its expiry a certificate is renewed; 0 for never.
	RenewEnded metav1.Duration `json:"renewEnded"`
}

// Devices is one port of TCP and UDP.
type Devices struct {
	Listen
	// Port is where devices find it, where that is another: by a Service, or a load balancer.
	// 0: as in Listen.
	Port int `json:"port"`
}

// Tunnel is the way of kube-apiserver to the kubelets of edge nodes.
type Tunnel struct {
	Listen
	// Advertise is where the other replicas find Listen, HOST:PORT; "" means this host's own
	// address, as kube-apiserver sees it.
	Advertise string `json:"advertise"`
	// Clients are the common names of the client certificates, of the cluster's CA, that
	// kube-apiserver shows.
	Clients []string `json:"clients"`
	// Endpoint serves clients that can only dial a node's address: by the node's name.
	Endpoint Endpoint `json:"endpoint"`
}

// Endpoint leads TLS clients to the kubelet of the node that they name.
type Endpoint struct {
	Listen
	// HideAddresses has the edge nodes' IP addresses written under types that no client dials:
	// clients use the name.
	HideAddresses bool `json:"hideAddresses"`
}

// VIP is how virtual IPs are given away.
type VIP struct {
	// ReservedVRIDs are numbers of VRRP that others use on networks of the edges.
	ReservedVRIDs []int32 `json:"reservedVRIDs"`
	// Quarantine is how long an address that was released waits for nodes that don't confirm that
	// they dropped it: those that are offline.
	Quarantine metav1.Duration `json:"quarantine"`
}

// Hub is where the edges' links end.
type Hub struct {
	WebSocket Listen `json:"websocket"`
	QUIC      Listen `json:"quic"`
	// Keepalive is the time between two signs of life. IdleTimeout is how long a silent link is
	// believed to live.
	Keepalive   metav1.Duration `json:"keepalive"`
	IdleTimeout metav1.Duration `json:"idleTimeout"`
	// MaxSessions bounds the links of this replica; an edge above it is sent to another replica, or
	// away with a time to come back.
	MaxSessions int `json:"maxSessions"`
}

// Relay bounds and times the edges' writes.
type Relay struct {
	// LeaseRenewal is between two renewals of a node's Lease while its kubelet lives.
	LeaseRenewal metav1.Duration `json:"leaseRenewal"`

	Quotas RelayQuotas `json:"quotas"`
}

// RelayQuotas bound the writes of one node; above them it is answered 429 with a Retry-After, and
// keeps its writes.
type RelayQuotas struct {
	EventsPerSecond int `json:"eventsPerSecond"`
	EventBurst      int `json:"eventBurst"` // events at once
	// StatusesPerSecond are statuses of pods and of the node, and last deletions of pods;
	// StatusBytesPerSecond those of their bodies.
	StatusesPerSecond    int `json:"statusesPerSecond"`
	StatusBurst          int `json:"statusBurst"`
	StatusBytesPerSecond int `json:"statusBytesPerSecond"`
	StatusByteBurst      int `json:"statusByteBurst"`

	RequestsPerSecond int `json:"requestsPerSecond"`
	RequestBurst      int `json:"requestBurst"`
	ReportsPerSecond  int `json:"reportsPerSecond"` // of routes, virtual IPs and operations
	ReportBurst       int `json:"reportBurst"`
	// CertificateRequestsPerHour are CertificateSigningRequests; as many may come at once.
	CertificateRequestsPerHour int `json:"certificateRequestsPerHour"`

	// HeavyNodes is how many nodes' rates those together have that have used more than a
	// sixteenth of a burst.
	HeavyNodes int `json:"heavyNodes"`

	BytesInFlight int `json:"bytesInFlight"` // of writes, requests and answers that cloudcore holds for a session
}

// Publish bounds the edges' interests.
type Publish struct {
	Quotas PublishQuotas `json:"quotas"`
}

// PublishQuotas bound the interests of one node; above them it is answered 429 with a Retry-After.
type PublishQuotas struct {
	Interests             int `json:"interests"`             // watches that a device has declared at once
	NewInterestsPerSecond int `json:"newInterestsPerSecond"` // of these; as many as interests may come at once
	Digests               int `json:"digests"`               // resources of which a device holds objects
	SelectorBytes         int `json:"selectorBytes"`         // names, namespaces and selectors of all its interests
}

// Default is the configuration without a file.
func Default() *Config {
	return &Config{
		TypeMeta:      config.TypeMeta{APIVersion: config.Version, Kind: Kind},
		Advertise:     []string{},
		Impersonation: "constrained",
		Devices:       Devices{Listen: Listen{Listen: ":443"}},
		Hub: Hub{
			MaxSessions: 10000,
			Keepalive:   metav1.Duration{Duration: 10 * time.Second}, IdleTimeout: metav1.Duration{Duration: 30 * time.Second},
		},
		Relay: Relay{LeaseRenewal: metav1.Duration{Duration: 20 * time.Second}, Quotas: RelayQuotas{
			EventsPerSecond: 100, EventBurst: 1500, StatusesPerSecond: 40, StatusBurst: 1000, StatusBytesPerSecond: 256 << 10, StatusByteBurst: 8 << 20,
			RequestsPerSecond: 200, RequestBurst: 2000, ReportsPerSecond: 40, ReportBurst: 500,
			CertificateRequestsPerHour: 60, HeavyNodes: 2, BytesInFlight: 8 << 20,
		}},
		Publish: Publish{Quotas: PublishQuotas{Interests: 1024, NewInterestsPerSecond: 16, Digests: 256, SelectorBytes: 64 << 10}},
		Join:    Join{RenewEnded: metav1.Duration{Duration: 90 * 24 * time.Hour}},
		Tunnel:  Tunnel{Listen: Listen{Listen: ":10004"}, Clients: []string{"kube-apiserver-kubelet-client"}},
		VIP:     VIP{ReservedVRIDs: []int32{}, Quarantine: metav1.Duration{Duration: 10 * time.Minute}},
		Logs:    Logs{BatchesPerSecond: 4},
		Health:  Listen{Listen: "127.0.0.1:10003"},
		Metrics: Metrics{Nodes: 1000},
		Log:     Log{Verbosity: 2, Format: "text"},
	}
}

// Read reads the content of cloudcore.yaml over the defaults. The error is a *config.Error that
// holds every mistake.
func Read(file string, data []byte) (*Config, error) {
	c := Default()
	d, err := config.Decode(file, data, Kind, c)
	if err != nil {
		return nil, err
	}
	if err := d.Errors(c.Validate()); err != nil {
		return nil, err
	}
	return c, nil
}

// Validate reports every field that can't work.
func (c *Config) Validate() field.ErrorList {
	var errs field.ErrorList
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		errs = append(errs, field.Invalid(field.NewPath("kubeconfig"), c.Kubeconfig, "must be an absolute path"))
	}
	if k := c.Approver.Kubeconfig; k != "" && !filepath.IsAbs(k) {
		errs = append(errs, field.Invalid(field.NewPath("approver", "kubeconfig"), k, "must be an absolute path"))
	}
	if len(c.Advertise) == 0 {
		errs = append(errs, field.Required(field.NewPath("advertise"), "name at least one host name or address under which edges reach cloudcore"))
	}
	for i, a := range c.Advertise {
		if _, err := netip.ParseAddr(a); err != nil && len(validation.IsDNS1123Subdomain(a)) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("advertise").Index(i), a, "must be a host name in lower case or an IP address, without a port"))
		}
	}
	switch c.Impersonation {
	case "constrained", "classic":
	default:
		errs = append(errs, field.NotSupported(field.NewPath("impersonation"), c.Impersonation, []string{"constrained", "classic"}))
	}
	for i, n := range c.VIP.ReservedVRIDs {
		if n < 1 || n > 255 {
			errs = append(errs, field.Invalid(field.NewPath("vip", "reservedVRIDs").Index(i), n, "must be 1 to 255"))
		}
	}
	if d := c.VIP.Quarantine.Duration; d < 0 {
		errs = append(errs, field.Invalid(field.NewPath("vip", "quarantine"), d.String(), "must not be negative"))
	}
	if c.Usage.Listen != "" && c.Tunnel.Listen.Listen == "" {
		errs = append(errs, field.Required(field.NewPath("tunnel", "listen"), "usage.listen is set, and kubelets are reached through the tunnel"))
	}
	errs = append(errs, c.Logs.validate(field.NewPath("logs"))...)
	errs = append(errs, c.Artefacts.validate(field.NewPath("artefacts"))...)
	errs = append(errs, c.Usage.validate(field.NewPath("usage"))...)
	if c.Subresources.Listen != "" && c.Tunnel.Listen.Listen == "" {
		errs = append(errs, field.Required(field.NewPath("tunnel", "listen"), "subresources.listen is set, and kubelets are reached through the tunnel"))
	}
	errs = append(errs, c.Subresources.validate(field.NewPath("subresources"))...)
	endpoint := field.NewPath("tunnel", "endpoint")
	if c.Tunnel.Endpoint.Listen.Listen != "" && c.Tunnel.Listen.Listen == "" {
		errs = append(errs, field.Required(field.NewPath("tunnel", "listen"), "tunnel.endpoint.listen is set, and replicas reach each other through tunnel.listen"))
	}
	if c.Tunnel.Endpoint.HideAddresses && c.Tunnel.Listen.Listen == "" {
		errs = append(errs, field.Required(field.NewPath("tunnel", "listen"), "tunnel.endpoint.hideAddresses is set, and nothing would reach a kubelet"))
	}
	errs = append(errs, c.Tunnel.Endpoint.validate(endpoint)...)
	hub := field.NewPath("hub")
	if c.Hub.WebSocket.Listen == "" && c.Hub.QUIC.Listen == "" && c.Devices.Listen.Listen == "" {
		errs = append(errs, field.Required(field.NewPath("devices", "listen"), "this, hub.websocket.listen or hub.quic.listen must be set, or no edge can reach this cloudcore"))
	}
	errs = append(errs, c.Devices.validate(field.NewPath("devices"))...)
	if n := c.Devices.Port; n < 0 || n > 65535 {
		errs = append(errs, field.Invalid(field.NewPath("devices", "port"), n, "must be a port, 1 to 65535, or 0 for that of devices.listen"))
	}
	errs = append(errs, c.Hub.WebSocket.validate(hub.Child("websocket"))...)
	errs = append(errs, c.Hub.QUIC.validate(hub.Child("quic"))...)
	if c.Hub.Keepalive.Duration < time.Second {
		errs = append(errs, field.Invalid(hub.Child("keepalive"), c.Hub.Keepalive.Duration.String(), "must be at least 1s"))
	}
	if c.Hub.IdleTimeout.Duration < 2*c.Hub.Keepalive.Duration {
		errs = append(errs, field.Invalid(hub.Child("idleTimeout"), c.Hub.IdleTimeout.Duration.String(), "must be at least twice the keepalive, or one lost packet ends a link"))
	}
	if n := c.Hub.MaxSessions; n < 1 || n > 1000000 {
		errs = append(errs, field.Invalid(hub.Child("maxSessions"), n, "must be 1 to 1000000"))
	}
	if d := c.Relay.LeaseRenewal.Duration; d < time.Second || d > 20*time.Second {
		errs = append(errs, field.Invalid(field.NewPath("relay", "leaseRenewal"), d.String(), "must be 1s to 20s: a Lease lasts 40s"))
	}
	errs = append(errs, c.Relay.Quotas.validate(field.NewPath("relay", "quotas"))...)
	errs = append(errs, c.Publish.Quotas.validate(field.NewPath("publish", "quotas"))...)
	errs = append(errs, c.Join.validate(field.NewPath("join"))...)
	if d := c.Join.RenewEnded.Duration; d < 0 || d > 10*365*24*time.Hour {
		errs = append(errs, field.Invalid(field.NewPath("join", "renewEnded"), d.String(), "must be 0s to 87600h"))
	}
	errs = append(errs, c.Tunnel.validate(field.NewPath("tunnel"))...)
	errs = append(errs, c.Health.validate(field.NewPath("health"))...)
	errs = append(errs, validate(field.NewPath("metrics"), []bounded{{"nodes", c.Metrics.Nodes, 0, 1000000}})...)
	errs = append(errs, c.Metrics.Sink.validate(field.NewPath("metrics"), "https://collector:4318/v1/metrics")...)
	if !slices.Contains(logging.Formats(), c.Log.Format) {
		errs = append(errs, field.NotSupported(field.NewPath("log", "format"), c.Log.Format, logging.Formats()))
	}
	if v := c.Log.Verbosity; v < 0 || v > 10 {
		errs = append(errs, field.Invalid(field.NewPath("log", "verbosity"), v, "must be 0 to 10"))
	}
	return errs
}

// bounded is a number that has a least and a greatest value.
type bounded struct {
	name        string
	value       int
	least, most int
}

func validate(at *field.Path, all []bounded) (errs field.ErrorList) {
	for _, f := range all {
		if f.value < f.least || f.value > f.most {
			errs = append(errs, field.Invalid(at.Child(f.name), f.value, fmt.Sprintf("must be %d to %d", f.least, f.most)))
		}
	}
	return errs
}

// validate: the minimum lets a device with some pods start.
func (q *RelayQuotas) validate(at *field.Path) field.ErrorList {
	return validate(at, []bounded{
		{"eventsPerSecond", q.EventsPerSecond, 1, 10000}, {"eventBurst", q.EventBurst, 64, 1000000},
		{"statusesPerSecond", q.StatusesPerSecond, 1, 10000}, {"statusBurst", q.StatusBurst, 256, 1000000},
		{"statusBytesPerSecond", q.StatusBytesPerSecond, 16 << 10, 1 << 30}, {"statusByteBurst", q.StatusByteBurst, 4 << 20, 1 << 30},
		{"requestsPerSecond", q.RequestsPerSecond, 1, 10000}, {"requestBurst", q.RequestBurst, 64, 1000000},
		{"reportsPerSecond", q.ReportsPerSecond, 1, 10000}, {"reportBurst", q.ReportBurst, 64, 1000000},
		{"certificateRequestsPerHour", q.CertificateRequestsPerHour, 10, 100000},
		{"heavyNodes", q.HeavyNodes, 1, 100000},
		{"bytesInFlight", q.BytesInFlight, 4 << 20, 1 << 30},
	})
}

// validate: the minimum is the number that a kubelet and edgecore's own agents declare, with room
// for pods.
func (q *PublishQuotas) validate(at *field.Path) field.ErrorList {
	return validate(at, []bounded{
		{"interests", q.Interests, 64, 4096}, {"newInterestsPerSecond", q.NewInterestsPerSecond, 1, 4096},
		{"digests", q.Digests, 32, 4096}, {"selectorBytes", q.SelectorBytes, 8 << 10, 1 << 20},
	})
}

func (t *Tunnel) validate(at *field.Path) field.ErrorList {
	errs := t.Listen.validate(at)
	if t.Listen.Listen == "" {
		return errs
	}
	if t.Advertise != "" {
		if host, port, err := net.SplitHostPort(t.Advertise); err != nil || host == "" || port == "" {
			errs = append(errs, field.Invalid(at.Child("advertise"), t.Advertise, "must be HOST:PORT"))
		}
	}
	for i, name := range t.Clients {
		if name == "" || strings.HasPrefix(name, pki.NodeUserPrefix) {
			errs = append(errs, field.Invalid(at.Child("clients").Index(i), name, "must be the common name of kube-apiserver's client certificate"))
		}
	}
	return errs
}

func (l *Listen) validate(at *field.Path) field.ErrorList {
	if l.Listen == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(l.Listen)
	if err == nil && host != "" {
		_, err = netip.ParseAddr(host)
	}
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return field.ErrorList{field.Invalid(at.Child("listen"), l.Listen, "must be [ADDRESS]:PORT, such as :10000 or 127.0.0.1:10003")}
	}
	return nil
}
