// Package upgrade changes the version and the configuration of this device's edgecore, and pulls
// images before they are needed: NodeOperations of type Upgrade, Config and ImagePull.
//
// It owns the way from an operation to a trial (skerry-launch starts it), the judgement whether a
// trial is healthy, and the way back. It refuses an artefact that no trusted key of the device has
// signed, a downgrade that was not allowed, a kubelet that is newer than kube-apiserver, a change
// of a field that only the device's operator may change. It does not schedule: package drain calls
// it for one operation at a time, from one goroutine.
//
// Everything is restarted after a crash: fetched files are on the disk, and package launch knows
// whether there is a trial, and of which operation.
package upgrade

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
)

const (
	standardTimeout = 10 * time.Minute
	probation       = 24 * time.Hour
	pause           = 30 * time.Second // after a fetch that failed, or while there is no link
	maxPause        = 5 * time.Minute  // between two pulls that fail, as the kubelet's
	poll            = 500 * time.Millisecond
)

// Device is the interface to the rest of edgecore.
type Device interface {
	// Linked reports whether there is a session with the cloud, opened by this process.
	Linked() bool
	// Reaches reports whether the cloud can be asked for artefacts: there is a session, or one that
	// is for the rescue of this device.
	Reaches() bool
	// Protocols are the versions of the link's protocol that the cloud is known to speak.
	Protocols(ctx context.Context) (protocol.Window, error)
	// Problems are the reasons why this process is not healthy, apart from the link. rebooted
	// reports that the device has booted since the trial was armed, which restarts containers too.
	Problems(ctx context.Context, rebooted bool) []string
	// ServerVersion is kube-apiserver's.
	ServerVersion(ctx context.Context) (string, error)
	// Schema is the oldest schema whose builds can use the store of this process.
	Schema() int
	// Judge returns why edgecore.yaml with a patch over it can't be used.
	Judge(patch []byte) error
}

// Config configures Works.
type Config struct {
	Started   launch.Started // how this process was started
	Launched  bool           // it was started by skerry-launch
	Self      string         // the file of this process's program
	Directory launch.Directory
	Artefacts *artefact.Store
	Cloud     artefact.Source
	Bundle    artefact.Source // a bundle that an operator has brought to the device
	// Neighbours are the devices of the site, which are asked for a program before the cloud is;
	// nil: there are none.
	Neighbours artefact.Neighbours
	Device     Device
	Images     Images
	Checks     func(ctx context.Context) ([]v1alpha1.HealthCheck, error)
	// Writable returns why programs can't be executed from Directory; nil if they can.
	Writable func() error
	// Restart ends this process and executes skerry-launch in its place.
	Restart func()
	// Log is the end of the log of the last rolled-back trial; ClearLog removes it, since a program
	// that can't be executed writes none of its own.
	Log      func() string
	ClearLog func() error
	Boot     string // the unique ID of the device's boot
	Version  string // of this process
	Arch     string
	Now      func() time.Time
	// Clock is the best that is known of the time, for windows: the device's own clock may be
	// wrong. nil: Now.
	Clock func() time.Time
	Zone  *time.Location // the device's own
}

// Works carries the operations out.
type Works struct {
	config Config
	began  time.Time // of this process
	// damaged is the digest of a running program that a delta did not apply to.
	damaged string
	// unpacked is the digest of the program that is fetched, and was unpacked once: it is unpacked
	// again when its window is open.
	unpacked string
}

// New returns Works. It does not read the disk.
func New(c Config) *Works {
	if c.Clock == nil {
		c.Clock = c.Now
	}
	return &Works{config: c, began: c.Now()}
}

// ID identifies an operation's attempt; the state of package launch has it.
func ID(o drain.Operation) string {
	return o.Name + "/" + strconv.FormatInt(o.RequestedAt.UnixNano(), 10) + "/" + strconv.Itoa(int(o.Spec.Retry))
}

// ErrForeignSecret refuses a Secret that no pod of this device refers to.
var ErrForeignSecret = errors.New("no pod on this device refers to this Secret for its images")

// Images are the container runtime's, and those that its garbage collection leaves alone.
type Images interface {
	// Credentials returns those of a Secret, or ErrForeignSecret.
	Credentials(ctx context.Context, from v1alpha1.SecretReference) (Credentials, error)
	// Present reports whether an image is on the device.
	Present(ctx context.Context, image string) (bool, error)
	Pull(ctx context.Context, image string, as Credentials) error
	// Keep has garbage collection leave an image alone. Its error is a reason, for people, why it
	// does not.
	Keep(ctx context.Context, image string) error
}

// Credentials returns the logins to try for an image, in order.
type Credentials func(image string) []Credential

// Credential is the login of one registry.
type Credential struct{ Username, Password string }

func done(work drain.Work, reason, message string) drain.Work {
	work.Ended, work.Reason, work.Message, work.Tried = drain.Done, reason, message, false
	return work
}

func failed(work drain.Work, reason, message string) drain.Work {
	work.Ended, work.Reason, work.Message, work.Tried = drain.Failed, reason, message, false
	return work
}

// later continues after a pause.
func (w *Works) later(work drain.Work, message string) drain.Work {
	work.Message, work.Next = message, w.config.Now().Add(pause)
	return work
}

func head(s string, most int) string {
	r := []rune(s)
	return string(r[:min(len(r), most)])
}

func tail(s string, most int) string {
	s = strings.ToValidUTF8(s[max(0, len(s)-most):], "")
	return s
}

// source returns the source of an operation's artefact.
func (w *Works) source(o drain.Operation) (from artefact.Source, offline bool) {
	if o.Request != "" && o.RequestedBy == v1alpha1.RequestedOnDevice {
		return w.config.Bundle, true
	}
	return w.config.Cloud, false
}

// arm sets the program to try, and starts it.
func (w *Works) arm(ctx context.Context, o drain.Operation, state launch.State, p launch.Program, work drain.Work, report func(drain.Work)) drain.Work {
	if ctx.Err() != nil {
		return work
	}
	reaches := w.config.Device.Reaches()
	if _, offline := w.source(o); !offline && !reaches { // a trial that never finds a link must not pass as healthy
		return w.later(work, "waits for the link")
	}
	work.Tried, work.Message, work.Offline = true, "the trial begins", !reaches
	report(work) // first: no cancellation ends it from here on
	if ctx.Err() != nil {
		work.Tried = false
		return work
	}
	if err := w.config.ClearLog(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove the log of an earlier trial; this one's may have its text")
	}
	if _, err := w.config.Directory.Save(state.Arm(p, ID(o), w.config.Boot, w.config.Now())); err != nil {
		work.Tried = false
		return w.later(work, err.Error())
	}
	return w.restart(ctx, work, report)
}

// restart executes skerry-launch, and waits for that.
func (w *Works) restart(ctx context.Context, work drain.Work, report func(drain.Work)) drain.Work {
	if !work.Tried {
		work.Tried = true
		report(work)
	}
	w.config.Restart()
	<-ctx.Done()
	return work
}
