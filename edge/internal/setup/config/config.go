// Package config is edgecore.yaml: its fields, their defaults and their rules.
//
// It owns the names that an operator writes. It refuses invalid settings, all of them at once. It
// starts no module and reads no file: edge/app does. A Config is filled once and then only read.
package config

import (
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/common/logging"
)

// Kind is the kind of the file.
const Kind = "EdgeCore"

// maxKeepalive is the longest keepalive that cloudcore believes.
const maxKeepalive = 10 * time.Minute

// Config is edgecore.yaml.
type Config struct {
	config.TypeMeta
	// DataDir has the store, the identity and other files that must survive a reboot.
	DataDir string  `json:"dataDir"`
	Log     Log     `json:"log"`
	Health  Health  `json:"health"`
	Modules Modules `json:"modules"`
}

// Log sets how much is written to standard error.
type Log struct {
	Verbosity int    `json:"verbosity"` // 0 to 10, as klog's -v
	Format    string `json:"format"`    // text or json
}

// Health is the listener for /healthz, /readyz and /metrics.
type Health struct {
	Listen string `json:"listen"` // address:port; "" disables it
}

// Modules is the configuration of each module.
type Modules struct {
	EdgeHub      EdgeHub      `json:"edgeHub"`
	MetaManager  MetaManager  `json:"metaManager"`
	EdgeAPI      EdgeAPI      `json:"edgeAPI"`
	Edged        Edged        `json:"edged"`
	Route        Route        `json:"route"`
	VIP          VIP          `json:"vip"`
	Drain        Drain        `json:"drain"`
	Services     Services     `json:"services"`
	Site         Site         `json:"site"`
	PodNetwork   PodNetwork   `json:"podNetwork"`
	Names        Names        `json:"names"`
	Marks        Marks        `json:"marks"`
	Passthrough  Passthrough  `json:"passthrough"`
	Console      Console      `json:"console"`
	Apps         Apps         `json:"apps"`
	AppLogs      AppLogs      `json:"appLogs"`
	NodeMetrics  NodeMetrics  `json:"nodeMetrics"`
	ClusterStats ClusterStats `json:"clusterStats"`
	StatusServer StatusServer `json:"statusServer"`
	Tunnel       Tunnel       `json:"tunnel"`
}

// EdgeHub keeps the link to the cloud.
type EdgeHub struct {
	Enable bool `json:"enable"`
	// Servers are the hosts (names or addresses, without a port) of cloudcore; they are tried in
	// turn. Empty means the one that the device joined.
	Servers []string `json:"servers"`
	// Transport is auto (QUIC first, websocket where UDP is blocked), websocket or quic.
	Transport string    `json:"transport"`
	WebSocket Transport `json:"websocket"`
	QUIC      Transport `json:"quic"`
	// Keepalive is the time between two signs of life. IdleTimeout is how long a silent link is
	// believed to live.
	Keepalive   metav1.Duration `json:"keepalive"`
	IdleTimeout metav1.Duration `json:"idleTimeout"`
	// BackoffMin and BackoffMax bound the wait between two attempts; the wait doubles and is drawn
	// at random below that ("full jitter"). For the first two minutes it stays below four times
	// BackoffMin if connections are refused, and about BackoffMin without any answer.
	BackoffMin metav1.Duration `json:"backoffMin"`
	BackoffMax metav1.Duration `json:"backoffMax"`
	// MachineID tells this machine from one with a copy of its disk; "" means what its firmware
	// has.
	MachineID string `json:"machineID"`
}

// Transport configures one of the two transports.
type Transport struct {
	Port int `json:"port"`
}

// MetaManager keeps the store, the interests and the outbox.
type MetaManager struct {
	Enable     bool       `json:"enable"`
	EventLimit EventLimit `json:"eventLimit"`
	Encryption Encryption `json:"encryption"`
}

// EventLimit bounds the events that wait for the cloud; the oldest are dropped first, and their
// number is reported.
type EventLimit struct {
	Entries int               `json:"entries"`
	Bytes   resource.Quantity `json:"bytes"`
}

// Encryption is of Secrets and tokens in the store, and of the device's own keys. At most one of
// KeyFile, KeyCommand and KeyCredential is set.
type Encryption struct {
	// KeyFile is made on first use. "" means store.key in the data directory.
	KeyFile string `json:"keyFile"`
	// KeyCommand, for /bin/sh, prints 32 bytes in hexadecimal. KeyCredential is a credential of
	// systemd with the same. With either of them no secret is stored on the disk in the clear: the
	// node's key is sealed too, and secrets that must be files are in KeysDir, on a file system of
	// memory.
	KeyCommand    string `json:"keyCommand"`
	KeyCredential string `json:"keyCredential"`
	KeysDir       string `json:"keysDir"`
}

// Sealed reports whether the key is not on the disk.
func (e *Encryption) Sealed() bool { return e.KeyCommand != "" || e.KeyCredential != "" }

func (e *Encryption) validate(at *field.Path) field.ErrorList {
	errs := absolute(at.Child("keyFile"), e.KeyFile, false)
	errs = append(errs, absolute(at.Child("keysDir"), e.KeysDir, true)...)
	if strings.Contains(e.KeyCredential, "/") || e.KeyCredential == "." || e.KeyCredential == ".." {
		errs = append(errs, field.Invalid(at.Child("keyCredential"), e.KeyCredential, "must be the name of a credential, as LoadCredentialEncrypted= has it"))
	}
	if e.KeyCommand != "" && e.KeyCredential != "" {
		errs = append(errs, field.Forbidden(at.Child("keyCredential"), "keyCommand is set: only one of them gives the key"))
	}
	if e.KeyFile != "" && e.Sealed() {
		errs = append(errs, field.Forbidden(at.Child("keyFile"), "keyCommand or keyCredential is set: a key in a file as well would not be used"))
	}
	return errs
}

// EdgeAPI is the Kubernetes API on the device.
type EdgeAPI struct {
	Enable bool   `json:"enable"`
	Socket string `json:"socket"` // unix socket, for root; "" disables it
	Listen string `json:"listen"` // loopback address:port, TLS; "" disables it
	// Pods redirects pods' requests to the cluster's API, at the address of the Service
	// default/kubernetes, to this one. PodsListen is the address on which they are served, which is
	// added to the device.
	Pods       bool   `json:"pods"`
	PodsListen string `json:"podsListen"`
}

// Edged is the kubelet.
type Edged struct {
	Enable bool `json:"enable"`
	// HostnameOverride is the node's name; "" means the host's name, in lower case.
	HostnameOverride string `json:"hostnameOverride"`
	// ReportEvent sends events to the cloud. Off, they can be read on the device alone: a thin link
	// should not pay for events unasked.
	ReportEvent bool              `json:"reportEvent"`
	Labels      map[string]string `json:"labels"` // of the Node, when it registers
	RootDir     string            `json:"rootDir"`
	// NodeIP is the address that the Node reports; "": the kubelet chooses.
	NodeIP string `json:"nodeIP"`
	// Kubelet is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1); missing fields have the
	// kubelet's own defaults.
	Kubelet json.RawMessage `json:"kubelet"`
	// KubeletConfigDir is the kubelet's flag --config-dir: a directory of drop-in files for
	// Kubelet; "" without one.
	KubeletConfigDir string `json:"kubeletConfigDir"`
	// SandboxImageArchive is a file with the image of pods' sandboxes, an OCI layout in a tar,
	// imported into the container runtime if that does not have the image; "" without one.
	SandboxImageArchive string `json:"sandboxImageArchive"`
	// ImageCredentialProviderConfig and ImageCredentialProviderBinDir are the kubelet's flags
	// --image-credential-provider-config and --image-credential-provider-bin-dir, which no
	// KubeletConfiguration has; "" without one.
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig"`
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir"`
	// DevicePluginTimeout is how long after the kubelet's start pods with devices of device plugins
	// wait for these; 0: not at all.
	DevicePluginTimeout metav1.Duration `json:"devicePluginTimeout"`
}

// Route keeps static routes.
type Route struct {
	Enable bool `json:"enable"`
	// Protocol marks our routes in the kernel (rtm_protocol of rtnetlink(7)). Change it only while
	// there are no routes: those with the old number would never be removed.
	Protocol int `json:"protocol"`
	// ProtectedSubnets are networks that no StaticRoute may cover, in addition to those that are
	// always protected: the paths to cloudcore, the node's own addresses and gateway, and the
	// ranges of pods and Services known to the node.
	ProtectedSubnets []string `json:"protectedSubnets"`
}

// Protected returns the protected subnets. Validate has refused invalid ones.
func (r *Route) Protected() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.ProtectedSubnets {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

// VIP serves virtual IPs.
type VIP struct {
	Enable bool `json:"enable"`
	// DataPlane carries the traffic: ipvs, iptables, or auto: ipvs where the kernel has it. A
	// change takes effect when edgecore starts again, and interrupts virtual IPs for a moment: the
	// other one's state is removed.
	DataPlane  string     `json:"dataPlane"`
	Keepalived Keepalived `json:"keepalived"`
}

// Keepalived configures the elections of addresses.
type Keepalived struct {
	// Program is its path, or its name in PATH.
	Program string `json:"program"`
	// Sections is a file with sections of your own for keepalived.conf, without global_defs; it
	// may be missing.
	Sections string `json:"sections"`
	// RunDir has keepalived's runtime files; it should be on a file system of memory.
	RunDir string `json:"runDir"`
}

// PodNetwork is the network of this device's pods, where no other CNI plugin makes it.
type PodNetwork struct {
	Enable bool `json:"enable"`
	// Subnets are the ranges of which the device takes the first unused one, if the cluster doesn't
	// assign it a range.
	Subnets []string `json:"subnets"`
}

// Site is the contact with the other devices of the NodePool.
type Site struct {
	Enable Switch `json:"enable"`
	// Port is the UDP port on which the devices of a site speak to each other; the same on all of
	// them. The next one is WireGuard's, between devices that share no network.
	Port int `json:"port"`
}

// Tunnel is the device's end of the way from the cloud to its kubelet.
type Tunnel struct {
	// Subresources allows cloudcore to request logs, exec, attach and port-forward of pods from
	// this device's kubelet, for permitted users.
	Subresources bool `json:"subresources"`
}

// Default returns the default configuration.
func Default() *Config {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	return &Config{
		TypeMeta: config.TypeMeta{APIVersion: config.Version, Kind: Kind},
		DataDir:  "/var/lib/skerry",
		Log:      Log{Verbosity: 2, Format: "text"},
		Health:   Health{Listen: "127.0.0.1:10551"},
		Modules: Modules{
			EdgeHub: EdgeHub{
				Enable: true, Servers: []string{}, Transport: "auto", WebSocket: Transport{Port: 443}, QUIC: Transport{Port: 443},
				Keepalive: seconds(10), IdleTimeout: seconds(30), BackoffMin: seconds(1), BackoffMax: seconds(30),
			},
			MetaManager: MetaManager{Enable: true, EventLimit: EventLimit{Entries: 10000, Bytes: resource.MustParse("16Mi")}, Encryption: Encryption{KeysDir: "/run/skerry/keys"}},
			EdgeAPI:     EdgeAPI{Enable: true, Socket: "/run/skerry/edge.sock", Listen: "127.0.0.1:10550", Pods: true, PodsListen: "169.254.20.20:10550"},
			Edged:       Edged{Enable: true, Labels: map[string]string{}, RootDir: "/var/lib/kubelet", Kubelet: json.RawMessage("{}"), SandboxImageArchive: "/usr/share/skerry/pause.oci.tar", DevicePluginTimeout: seconds(300)},
			Route:       Route{Enable: true, Protocol: 158, ProtectedSubnets: []string{}},
			VIP: VIP{Enable: true, DataPlane: "auto", Keepalived: Keepalived{
				Program: "keepalived", Sections: "/etc/skerry/keepalived.conf", RunDir: "/run/skerry/keepalived",
			}},
			Drain: Drain{
				Enable: true, Evict: true, Attempts: 5, Interval: seconds(300), Timeout: seconds(3600), ProceedAfter: seconds(300),
				EvictInterval: seconds(5), RetryInterval: seconds(5),
				Hooks: Hooks{Timeout: metav1.Duration{Duration: time.Hour}, Reboot: "systemctl reboot", Shutdown: "systemctl poweroff"},
			},
			Services:     Services{Enable: Auto, Mode: "auto", ExternalIPs: []string{}},
			Site:         Site{Enable: Auto, Port: 10552},
			PodNetwork:   PodNetwork{Enable: true, Subnets: []string{"10.222.0.0/24", "172.28.222.0/24", "192.168.222.0/24", "10.111.222.0/24"}},
			Names:        Names{Enable: Auto, Listen: "169.254.20.20:53", Domain: "cluster.local", Zones: []Zone{}, Upstream: []string{}},
			Marks:        Marks{ClusterStatusPort: 12346},
			Passthrough:  Passthrough{Ports: []string{}},
			Console:      Console{FirstPort: 5900, Limit: seconds(1800)},
			Apps:         Apps{HaltingAfter: seconds(300), SilentAfter: seconds(120)},
			AppLogs:      AppLogs{Dir: "/var/log/pods", Interval: seconds(5)},
			NodeMetrics:  NodeMetrics{Enable: true, Interval: seconds(60), SendInterval: seconds(300)},
			ClusterStats: ClusterStats{LeaseDuration: seconds(300), RenewDeadline: seconds(180), RetryPeriod: seconds(15)},
			StatusServer: StatusServer{Peers: []string{}},
			Tunnel:       Tunnel{Subresources: true},
		},
	}
}

// Read reads the content of edgecore.yaml over the defaults. The error is a *config.Error with
// every mistake except those in the KubeletConfiguration. Document finds the line of a field, for
// rules that are checked elsewhere. It is returned with an error too, unless the file is invalid
// YAML; so is the Config if every field could be read.
func Read(file string, data []byte) (*Config, *config.Document, error) {
	c := Default()
	d, err := config.Decode(file, data, Kind, c)
	if err != nil {
		return nil, d, err
	}
	return c, d, d.Errors(c.Validate())
}

// Validate reports every field that can't work.
func (c *Config) Validate() field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, absolute(field.NewPath("dataDir"), c.DataDir, true)...)
	if !slices.Contains(logging.Formats(), c.Log.Format) {
		errs = append(errs, field.NotSupported(field.NewPath("log", "format"), c.Log.Format, logging.Formats()))
	}
	if v := c.Log.Verbosity; v < 0 || v > 10 {
		errs = append(errs, field.Invalid(field.NewPath("log", "verbosity"), v, "must be 0 to 10"))
	}
	errs = append(errs, listen(field.NewPath("health", "listen"), c.Health.Listen, false)...)
	modules := field.NewPath("modules")
	errs = append(errs, c.Modules.EdgeHub.validate(modules.Child("edgeHub"))...)
	errs = append(errs, c.Modules.MetaManager.validate(modules.Child("metaManager"))...)
	errs = append(errs, c.Modules.EdgeAPI.validate(modules.Child("edgeAPI"))...)
	errs = append(errs, c.Modules.Edged.validate(modules.Child("edged"))...)
	errs = append(errs, c.Modules.Route.validate(modules.Child("route"))...)
	errs = append(errs, c.Modules.VIP.validate(modules.Child("vip"))...)
	errs = append(errs, c.Modules.Drain.validate(modules.Child("drain"))...)
	errs = append(errs, c.Modules.Services.validate(modules.Child("services"))...)
	errs = append(errs, c.Modules.Site.validate(modules.Child("site"))...)
	errs = append(errs, c.Modules.PodNetwork.validate(modules.Child("podNetwork"))...)
	errs = append(errs, c.Modules.Names.validate(modules.Child("names"))...)
	if !c.Modules.EdgeAPI.Enable && (c.Modules.Services.Enable == On || c.Modules.Names.Enable == On || c.Modules.Marks.Enable || c.Modules.Passthrough.Enable) {
		errs = append(errs, field.Forbidden(modules.Child("edgeAPI", "enable"), "services, names, marks and passthrough read the edge API: they can't run without it"))
	}
	errs = append(errs, c.Modules.Marks.validate(modules.Child("marks"))...)
	errs = append(errs, c.Modules.Console.validate(modules.Child("console"))...)
	errs = append(errs, c.Modules.Apps.validate(modules.Child("apps"))...)
	errs = append(errs, c.Modules.AppLogs.validate(modules.Child("appLogs"))...)
	errs = append(errs, c.Modules.NodeMetrics.validate(modules.Child("nodeMetrics"))...)
	errs = append(errs, c.Modules.ClusterStats.validate(modules.Child("clusterStats"))...)
	errs = append(errs, c.Modules.StatusServer.validate(modules.Child("statusServer"), c.Modules.Apps.Enable)...)
	if !c.Modules.MetaManager.Enable && (c.Modules.EdgeHub.Enable || c.Modules.EdgeAPI.Enable || c.Modules.Edged.Enable) {
		errs = append(errs, field.Forbidden(modules.Child("metaManager", "enable"), "edgeHub, edgeAPI and edged stand on the store: they can't run without it"))
	}
	return errs
}

func (h *EdgeHub) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !h.Enable {
		return nil
	}
	for i, s := range h.Servers {
		if _, err := netip.ParseAddr(s); err == nil {
			continue
		}
		if host, _, err := net.SplitHostPort(s); err == nil {
			errs = append(errs, field.Invalid(at.Child("servers").Index(i), s, "must be a host without a port, such as "+host+
				"; ports are in websocket.port and quic.port"))
		} else if msgs := validation.IsDNS1123Subdomain(strings.ToLower(s)); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("servers").Index(i), s, "must be a host name or an IP address"))
		}
	}
	switch h.Transport {
	case "auto", "websocket", "quic":
	default:
		errs = append(errs, field.NotSupported(at.Child("transport"), h.Transport, []string{"auto", "websocket", "quic"}))
	}
	errs = append(errs, port(at.Child("websocket", "port"), h.WebSocket.Port)...)
	errs = append(errs, port(at.Child("quic", "port"), h.QUIC.Port)...)
	if h.Keepalive.Duration < time.Second {
		errs = append(errs, field.Invalid(at.Child("keepalive"), h.Keepalive.Duration.String(), "must be at least 1s"))
	}
	if h.Keepalive.Duration > maxKeepalive {
		errs = append(errs, field.Invalid(at.Child("keepalive"), h.Keepalive.Duration.String(), "must be at most 10m: cloudcore takes a device that says less for dead"))
	}
	if h.IdleTimeout.Duration < 2*h.Keepalive.Duration {
		errs = append(errs, field.Invalid(at.Child("idleTimeout"), h.IdleTimeout.Duration.String(), "must be at least twice the keepalive, or one lost packet ends the link"))
	}
	if n := len(h.MachineID); n > 256 || n > 0 && n < 4 {
		errs = append(errs, field.Invalid(at.Child("machineID"), h.MachineID, "must have 4 to 256 characters, or be empty"))
	}
	if h.BackoffMin.Duration < 100*time.Millisecond {
		errs = append(errs, field.Invalid(at.Child("backoffMin"), h.BackoffMin.Duration.String(), "must be at least 100ms"))
	}
	if h.BackoffMax.Duration < h.BackoffMin.Duration {
		errs = append(errs, field.Invalid(at.Child("backoffMax"), h.BackoffMax.Duration.String(), "must not be below backoffMin"))
	}
	return errs
}

func (m *MetaManager) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := m.EventLimit.Entries; n < 100 || n > 1000000 {
		errs = append(errs, field.Invalid(at.Child("eventLimit", "entries"), n, "must be 100 to 1000000"))
	}
	if n := m.EventLimit.Bytes.Value(); n < 1<<20 || n > 1<<30 {
		errs = append(errs, field.Invalid(at.Child("eventLimit", "bytes"), m.EventLimit.Bytes.String(), "must be 1Mi to 1Gi"))
	}
	return append(errs, m.Encryption.validate(at.Child("encryption"))...)
}

func (a *EdgeAPI) validate(at *field.Path) field.ErrorList {
	errs := absolute(at.Child("socket"), a.Socket, false)
	// sun_path of unix(7) is 108 bytes with its end mark.
	if len(a.Socket) > 100 { // sun_path of unix(7) has 107, and the socket of images is next to it
		errs = append(errs, field.TooLong(at.Child("socket"), a.Socket, 100))
	}
	if p, err := netip.ParseAddrPort(a.PodsListen); a.Pods && (err != nil || !p.Addr().Is4() || !p.Addr().IsLinkLocalUnicast()) {
		errs = append(errs, field.Invalid(at.Child("podsListen"), a.PodsListen, "must be a link-local IPv4 address and a port, such as 169.254.20.20:10550"))
	}
	return append(errs, listen(at.Child("listen"), a.Listen, true)...)
}

func (e *Edged) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e.HostnameOverride != "" {
		for _, msg := range validation.IsDNS1123Subdomain(e.HostnameOverride) {
			errs = append(errs, field.Invalid(at.Child("hostnameOverride"), e.HostnameOverride, msg))
		}
	}
	for k, v := range e.Labels {
		for _, msg := range validation.IsQualifiedName(k) {
			errs = append(errs, field.Invalid(at.Child("labels").Child(k), k, msg))
		}
		for _, msg := range validation.IsValidLabelValue(v) {
			errs = append(errs, field.Invalid(at.Child("labels").Child(k), v, msg))
		}
	}
	if e.NodeIP != "" {
		if _, err := netip.ParseAddr(e.NodeIP); err != nil {
			errs = append(errs, field.Invalid(at.Child("nodeIP"), e.NodeIP, "must be an IP address"))
		}
	}
	errs = append(errs, absolute(at.Child("kubeletConfigDir"), e.KubeletConfigDir, false)...)
	errs = append(errs, absolute(at.Child("sandboxImageArchive"), e.SandboxImageArchive, false)...)
	errs = append(errs, absolute(at.Child("imageCredentialProviderConfig"), e.ImageCredentialProviderConfig, e.ImageCredentialProviderBinDir != "")...)
	errs = append(errs, absolute(at.Child("imageCredentialProviderBinDir"), e.ImageCredentialProviderBinDir, e.ImageCredentialProviderConfig != "")...)
	if e.DevicePluginTimeout.Duration < 0 {
		errs = append(errs, field.Invalid(at.Child("devicePluginTimeout"), e.DevicePluginTimeout.Duration.String(), "must not be negative"))
	}
	return append(errs, absolute(at.Child("rootDir"), e.RootDir, e.Enable)...)
}

func (r *Route) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	// Below RTPROT_STATIC (4) and at it are the numbers of the kernel, of boot scripts and of
	// administrators.
	if r.Protocol < 5 || r.Protocol > 255 {
		errs = append(errs, field.Invalid(at.Child("protocol"), r.Protocol, "must be 5 to 255, and used by no other program; see /etc/iproute2/rt_protos"))
	}
	for i, text := range r.ProtectedSubnets {
		if p, err := netip.ParsePrefix(text); err != nil {
			errs = append(errs, field.Invalid(at.Child("protectedSubnets").Index(i), text, "must be a network, such as 10.0.0.0/8"))
		} else if p != p.Masked() {
			errs = append(errs, field.Invalid(at.Child("protectedSubnets").Index(i), text, "has bits set behind its mask: write "+p.Masked().String()))
		}
	}
	return errs
}

func (v *VIP) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	planes := []string{"auto", "ipvs", "iptables"}
	if !slices.Contains(planes, v.DataPlane) {
		errs = append(errs, field.NotSupported(at.Child("dataPlane"), v.DataPlane, planes))
	}
	at = at.Child("keepalived")
	if v.Keepalived.Program == "" {
		errs = append(errs, field.Required(at.Child("program"), ""))
	}
	errs = append(errs, absolute(at.Child("sections"), v.Keepalived.Sections, false)...)
	return append(errs, absolute(at.Child("runDir"), v.Keepalived.RunDir, v.Enable)...)
}

// Ranges are the subnets, which validate has read.
func (p *PodNetwork) Ranges() (all []netip.Prefix) {
	for _, text := range p.Subnets {
		if r, err := netip.ParsePrefix(text); err == nil {
			all = append(all, r)
		}
	}
	return all
}

func (p *PodNetwork) validate(at *field.Path) (errs field.ErrorList) {
	for i, text := range p.Subnets {
		r, err := netip.ParsePrefix(text)
		if err != nil || !r.Addr().Is4() || r != r.Masked() || r.Bits() < 8 || r.Bits() > 28 {
			errs = append(errs, field.Invalid(at.Child("subnets").Index(i), text, "must be a range of IPv4 addresses, from /8 to /28, like 10.222.0.0/24"))
		}
	}
	return errs
}

func (s *Site) validate(at *field.Path) field.ErrorList {
	errs := append(s.Enable.validate(at.Child("enable")), port(at.Child("port"), s.Port)...)
	if s.Port == 65535 {
		errs = append(errs, field.Invalid(at.Child("port"), s.Port, "must be below 65535: WireGuard has the port after it"))
	}
	return errs
}

func absolute(at *field.Path, path string, required bool) field.ErrorList {
	switch {
	case path == "" && required:
		return field.ErrorList{field.Required(at, "")}
	case path != "" && !filepath.IsAbs(path):
		return field.ErrorList{field.Invalid(at, path, "must be an absolute path")}
	}
	return nil
}

func port(at *field.Path, n int) field.ErrorList {
	if n < 1 || n > 65535 {
		return field.ErrorList{field.Invalid(at, n, "must be a port, 1 to 65535")}
	}
	return nil
}

func listen(at *field.Path, address string, loopback bool) field.ErrorList {
	if address == "" {
		return nil
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return field.ErrorList{field.Invalid(at, address, "must be ADDRESS:PORT, such as 127.0.0.1:10550")}
	}
	if loopback && !ap.Addr().IsLoopback() {
		return field.ErrorList{field.Invalid(at, address, "must be a loopback address: this API is for the device alone")}
	}
	return nil
}
