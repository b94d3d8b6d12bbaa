package config

import (
	"net/netip"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Apps reports the applications (EdgeApps) of this device.
type Apps struct {
	Enable bool `json:"enable"`
	// HaltingAfter is how long an application's state may be Unknown before it counts as Halting.
	HaltingAfter metav1.Duration `json:"haltingAfter"`
	// SilentAfter is the time without a link after which reports stop.
	SilentAfter metav1.Duration `json:"silentAfter"`
}

func (a *Apps) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, v := range map[string]metav1.Duration{"haltingAfter": a.HaltingAfter, "silentAfter": a.SilentAfter} {
		if v.Duration < time.Second || v.Duration > 24*time.Hour {
			errs = append(errs, field.Invalid(at.Child(name), v.Duration.String(), "must be 1s to 24h0m0s"))
		}
	}
	return errs
}

// ClusterStats makes this device a candidate for reporter of the cluster's statistics
// (ClusterInfo).
type ClusterStats struct {
	Enable bool `json:"enable"`
	// LeaseDuration is how long a device's Lease is valid without renewal, RenewDeadline how long a
	// device continues that can't renew it, RetryPeriod how often it is renewed, and asked for by
	// the others.
	LeaseDuration metav1.Duration `json:"leaseDuration"`
	RenewDeadline metav1.Duration `json:"renewDeadline"`
	RetryPeriod   metav1.Duration `json:"retryPeriod"`
}

func (c *ClusterStats) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := c.LeaseDuration.Duration; d < 3*time.Second || d > time.Hour || d%time.Second != 0 {
		errs = append(errs, field.Invalid(at.Child("leaseDuration"), d.String(), "must be 3s to 1h0m0s, in whole seconds"))
	}
	if c.RenewDeadline.Duration >= c.LeaseDuration.Duration {
		errs = append(errs, field.Invalid(at.Child("renewDeadline"), c.RenewDeadline.Duration.String(), "must be below leaseDuration, or two devices report at once"))
	}
	// Twice: client-go's election requires more than 1.2 times.
	if d := c.RetryPeriod.Duration; d < time.Second || 2*d > c.RenewDeadline.Duration {
		errs = append(errs, field.Invalid(at.Child("retryPeriod"), d.String(), "must be at least 1s, and at most half of renewDeadline"))
	}
	return errs
}

// AppLogs sends the logs of applications that ask for it to the cloud.
type AppLogs struct {
	Enable bool `json:"enable"`
	// Dir is where the kubelet has the logs of pods (its podLogsDir).
	Dir string `json:"dir"`
	// Interval is how often it is looked for lines.
	Interval metav1.Duration `json:"interval"`
}

func (l *AppLogs) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := l.Interval.Duration; d < time.Second || d > 10*time.Minute {
		errs = append(errs, field.Invalid(at.Child("interval"), d.String(), "must be 1s to 10m0s"))
	}
	if !filepath.IsAbs(l.Dir) {
		errs = append(errs, field.Invalid(at.Child("dir"), l.Dir, "must be an absolute path"))
	}
	return errs
}

// NodeMetrics samples this device's metrics for the cloud.
type NodeMetrics struct {
	Enable bool `json:"enable"`
	// Interval is the time between two samples.
	Interval metav1.Duration `json:"interval"`
	// SendInterval is the time between two messages to the cloud.
	SendInterval metav1.Duration `json:"sendInterval"`
}

func (m *NodeMetrics) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := m.Interval.Duration; d < time.Second || d > time.Hour {
		errs = append(errs, field.Invalid(at.Child("interval"), d.String(), "must be 1s to 1h0m0s"))
	}
	if d := m.SendInterval.Duration; d < m.Interval.Duration || d > time.Hour {
		errs = append(errs, field.Invalid(at.Child("sendInterval"), d.String(), "must be at least interval, and at most 1h0m0s"))
	}
	return errs
}

// StatusServer serves the status of this device and its applications by HTTPS.
type StatusServer struct {
	Enable bool `json:"enable"`
	// Listen is ADDRESS:PORT; it is listened on while the address is on an interface.
	Listen string `json:"listen"`
	// ClusterID is the ID that a joining node expects in /status.
	ClusterID string `json:"clusterID"`
	// Peers are ADDRESS:PORT of the status servers of other devices.
	Peers []string `json:"peers"`
	// InstallLog is a file whose last lines are shown; "" without one.
	InstallLog string `json:"installLog"`
}

// Addresses returns the address to listen on, and the peers. Validate has refused invalid ones.
func (s *StatusServer) Addresses() (listen netip.AddrPort, peers []netip.AddrPort) {
	listen, _ = netip.ParseAddrPort(s.Listen)
	for _, text := range s.Peers {
		p, _ := netip.ParseAddrPort(text)
		peers = append(peers, p)
	}
	return listen, peers
}

// maxPeers bounds how many devices are asked at once.
const maxPeers = 64

func (s *StatusServer) validate(at *field.Path, apps bool) field.ErrorList {
	if !s.Enable {
		return nil
	}
	var errs field.ErrorList
	address := func(at *field.Path, text string) {
		if p, err := netip.ParseAddrPort(text); err != nil || p.Addr().IsUnspecified() || p.Port() == 0 {
			errs = append(errs, field.Invalid(at, text, "must be ADDRESS:PORT of an interface, such as 192.168.100.1:12346"))
		}
	}
	address(at.Child("listen"), s.Listen)
	if s.ClusterID == "" {
		errs = append(errs, field.Required(at.Child("clusterID"), "joining nodes wait for it"))
	}
	if len(s.Peers) > maxPeers {
		errs = append(errs, field.TooMany(at.Child("peers"), len(s.Peers), maxPeers))
	}
	for i, text := range s.Peers {
		address(at.Child("peers").Index(i), text)
	}
	if !apps {
		errs = append(errs, field.Forbidden(at.Child("enable"), "the pages are about what modules.apps keeps on the device: enable that too"))
	}
	if s.InstallLog != "" && !filepath.IsAbs(s.InstallLog) {
		errs = append(errs, field.Invalid(at.Child("installLog"), s.InstallLog, "must be an absolute path"))
	}
	return errs
}
