package upgrade

import (
	"context"
	"errors"
	"fmt"
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

// upgrade brings an operation to its trial.
func (w *Works) upgrade(ctx context.Context, o drain.Operation, state launch.State, work drain.Work, report func(drain.Work)) drain.Work {
	spec := *o.Spec.Upgrade
	from, offline := w.source(o)
	if !offline && !w.config.Device.Reaches() {
		return w.later(work, "waits for the link")
	}
	catalogue, err := w.config.Artefacts.Refresh(ctx, from, offline)
	if err != nil {
		return w.refuse(work, err)
	}
	target, deltas, err := catalogue.Find(spec.Version, w.config.Arch, spec.Digest)
	if err != nil {
		return w.refuse(work, err)
	}
	if work.Warning = catalogue.Warning; work.Warning != "" {
		klog.FromContext(ctx).Info("Using expired metadata of an operator's bundle", "warning", work.Warning)
	}
	work.Upgrade.Digest = target.Digest
	p := launch.Program{Slot: state.Free(), Version: target.Version, Digest: target.Digest, Overlay: state.Confirmed.Overlay}
	running := w.running(ctx, state)
	switch {
	case running.digest == target.Digest:
		return done(work, v1alpha1.OperationUnchanged, "the device runs "+spec.Version+" already")
	case state.Rejects(p) && o.Spec.Retry == 0:
		return failed(work, v1alpha1.OperationRejected, "an earlier trial of this program went back; raise retry to try it again")
	}
	if err := w.judge(ctx, target, spec, offline); err != nil {
		return w.refuse(work, err)
	}
	closed, next := w.closed(o)
	if closed && w.unpacked == target.Digest {
		return waits(work, next)
	}
	if running.digest == w.damaged {
		deltas = nil
	}
	file, base := choose(target, deltas, running)
	if err := w.config.Artefacts.Clean(file); err != nil {
		return w.later(work, err.Error())
	}
	path, err := w.copy(ctx, target, offline, &work, report)
	if errors.Is(err, artefact.ErrNoNeighbour) {
		klog.FromContext(ctx).V(2).Info("Fetching the program from its source", "version", target.Version, "reason", err.Error())
		path, err = w.obtain(ctx, from, file, base, &work, report)
	}
	if file.From != "" && wrong(err) {
		klog.FromContext(ctx).Error(err, "Failed to apply a delta, fetching the whole program", "path", base)
		w.damaged = running.digest
		path, err = w.obtain(ctx, from, target, "", &work, report)
	}
	if err != nil {
		return w.refuse(work, err)
	}
	w.unpacked = target.Digest
	if closed, next = w.closed(o); closed {
		return waits(work, next)
	}
	if state, err = w.config.Directory.Save(state.Release(p.Slot)); err != nil {
		return w.later(work, err.Error())
	}
	if err := w.config.Directory.Install(path, p.Slot); err != nil {
		return w.later(work, err.Error())
	}
	return w.arm(ctx, o, state.Forgive(p), p, work, report)
}

func waits(work drain.Work, next time.Time) drain.Work {
	work.Message, work.Next, work.Waits = "fetched; waits for its window", next, true
	return work
}

// copy brings the program from devices of the site: whole, also where there is a delta, since not
// their network is thin but the link. An operator's bundle is on the device already.
func (w *Works) copy(ctx context.Context, t artefact.Target, offline bool, work *drain.Work, report func(drain.Work)) (path string, err error) {
	if offline || w.config.Neighbours == nil {
		return "", artefact.ErrNoNeighbour
	}
	before := *work
	copied := reporter(work, t.Size, "copied %d of %d KiB from devices of the site", report)
	path, err = w.config.Artefacts.Copy(ctx, w.config.Neighbours, t, func(n int64) {
		status := *work.Upgrade
		status.Size, status.Delta, status.FromSite = t.Size, false, true
		work.Upgrade = &status
		copied(n)
	})
	if errors.Is(err, artefact.ErrNoNeighbour) { // its bytes are discarded
		work.Upgrade, work.Message = before.Upgrade, before.Message
	}
	return path, err
}

// obtain brings a file to the device and makes the program of it. base is the program that a delta
// is to.
func (w *Works) obtain(ctx context.Context, from artefact.Source, t artefact.Target, base string, work *drain.Work, report func(drain.Work)) (path string, err error) {
	status := *work.Upgrade
	status.Size, status.Delta, status.FromSite = t.Length, t.From != "", false
	work.Upgrade = &status
	if err := w.config.Artefacts.Clean(t); err != nil {
		return "", err
	}
	if err := w.config.Artefacts.Room(t); err != nil {
		return "", err
	}
	if err := w.fetch(ctx, from, t, work, report); err != nil {
		return "", err
	}
	return w.config.Artefacts.Unpack(t, base)
}

// wrong reports whether a file, or what it unpacks to, is another one than was signed.
func wrong(err error) bool {
	return errors.Is(err, artefact.ErrWrongHash) || errors.Is(err, artefact.ErrBomb)
}

// runningProgram is the program that the device executes, to which there may be a delta.
type runningProgram struct{ digest, path string }

// running returns the confirmed program; the zero value if it is unknown, as while another program
// is executed instead. The digest of the package's program is in no state, so it is computed.
func (w *Works) running(ctx context.Context, state launch.State) runningProgram {
	if state.Confirmed.Slot != launch.Package {
		return runningProgram{state.Confirmed.Digest, w.config.Directory.Program(state.Confirmed.Slot)}
	}
	if w.config.Started.Program.Slot != launch.Package {
		return runningProgram{}
	}
	digest, err := artefact.Digest(w.config.Self)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the running program; deltas to it are not used", "path", w.config.Self)
		return runningProgram{}
	}
	return runningProgram{digest, w.config.Self}
}

// choose takes the smallest file that makes the program: a delta to the one that runs, or all of
// it.
func choose(whole artefact.Target, deltas []artefact.Target, running runningProgram) (t artefact.Target, base string) {
	t = whole
	for _, d := range deltas {
		if d.From == running.digest && d.Length < t.Length {
			t, base = d, running.path
		}
	}
	return t, base
}

// reporter reports each tenth of the bytes: a report is a write to the disk.
func reporter(work *drain.Work, size int64, message string, report func(drain.Work)) (progress func(n int64)) {
	next := int64(0)
	return func(n int64) {
		if n < next && n < size {
			return
		}
		next = n + size/10 + 1
		status := *work.Upgrade
		status.Fetched = n
		work.Upgrade, work.Message = &status, fmt.Sprintf(message, n>>10, size>>10)
		report(*work)
	}
}

// fetch brings the rest of a file. A transfer that is interrupted continues with the next link,
// without the metadata of another try, as long as bytes keep coming.
func (w *Works) fetch(ctx context.Context, from artefact.Source, t artefact.Target, work *drain.Work, report func(drain.Work)) error {
	progress := reporter(work, t.Length, "fetched %d of %d KiB", report)
	var until time.Time // until when it waits for more bytes: not before some have come
	for {
		before := w.config.Artefacts.Fetched(t)
		err := w.config.Artefacts.Fetch(ctx, from, t, progress)
		now := w.config.Now()
		if w.config.Artefacts.Fetched(t)-before >= worth {
			until = now.Add(pause)
		}
		if _, ok := errors.AsType[artefact.Interrupted](err); !ok || !now.Before(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(poll):
		}
	}
}

// worth is how many bytes a try has to bring for another one at once: a source that sends a few and
// closes, again and again, is asked as seldom as one that fails.
const worth = 4 << 10

// refuse ends an operation for reasons that time does not change, and continues later for others.
func (w *Works) refuse(work drain.Work, err error) drain.Work {
	for _, final := range []error{
		artefact.ErrUntrusted, artefact.ErrExpired, artefact.ErrReplayed, artefact.ErrNoTarget, artefact.ErrNoKeys, artefact.ErrNoRoom, errRefused,
	} {
		if errors.Is(err, final) {
			return failed(work, v1alpha1.OperationRefused, err.Error())
		}
	}
	if wrong(err) {
		return failed(work, v1alpha1.OperationFetching, err.Error())
	}
	return w.later(work, err.Error())
}

var errRefused = errors.New("refused")

// judge looks for the reasons to refuse a version before its first byte is fetched.
func (w *Works) judge(ctx context.Context, t artefact.Target, spec v1alpha1.UpgradeSpec, offline bool) error {
	if launch.Older(t.Version, w.config.Version) && !spec.AllowDowngrade {
		return fmt.Errorf("%w: %s is older than %s, and allowDowngrade is false", errRefused, t.Version, w.config.Version)
	}
	if t.Protocol != 0 {
		spoken, err := w.config.Device.Protocols(ctx)
		if err != nil {
			return fmt.Errorf("asking for the cloud's protocol: %w", err)
		}
		if _, common := spoken.Common(protocol.Stated(t.Protocol, t.ProtocolMin)); !common {
			return fmt.Errorf("%w: %s has no version of the link's protocol in common with this cluster", errRefused, t.Version)
		}
	}
	if schema := w.config.Device.Schema(); t.Schema != 0 && t.Schema < schema {
		return fmt.Errorf("%w: %s reads stored data of schema %d at most, this device's need %d", errRefused, t.Version, t.Schema, schema)
	}
	if err := w.config.Writable(); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if t.Kubernetes == "" || offline && !w.config.Device.Reaches() {
		return nil
	}
	server, err := w.config.Device.ServerVersion(ctx)
	if err != nil {
		return fmt.Errorf("asking for kube-apiserver's version: %w", err)
	}
	if why := skew(t.Kubernetes, server); why != "" {
		return fmt.Errorf("%w: %s", errRefused, why)
	}
	return nil
}

// skew returns why a kubelet can't be used with a kube-apiserver: it may be up to three minor
// versions older, and not newer (kubernetes.io/releases/version-skew-policy).
func skew(kubelet, server string) string {
	k, kOK := minor(kubelet)
	s, sOK := minor(server)
	switch {
	case !kOK || !sOK:
		return ""
	case k > s:
		return fmt.Sprintf("its kubelet %s is newer than kube-apiserver %s: upgrade the cluster first", kubelet, server)
	case k < s-3:
		return fmt.Sprintf("its kubelet %s is more than three minor versions older than kube-apiserver %s", kubelet, server)
	}
	return ""
}

func minor(version string) (int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
	return n, err == nil
}
