// Package nodemetrics defines the metrics that a device samples for the cloud, and packs samples
// into messages of the link.
//
// It owns the list of series: an ID is a wire contract and is never used again for another series.
// It refuses messages above the bounds (Unpack). Its functions keep no state.
package nodemetrics

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The bounds of a message.
const (
	MaxSamples = 60
	MaxSeries  = 128
)

// Series is one series of a device.
type Series struct {
	ID      uint32
	Name    string // of the metric, in Prometheus' form
	Help    string
	Counter bool
	// Label and Value are the series' own label, besides the node's, or "".
	Label, Value string
	// PerUnit is by how much a value is multiplied before it is rounded and sent: 1000 keeps
	// milliseconds of a metric in seconds.
	PerUnit float64
	// Heartbeat: cloudcore's /metrics serves the metric from heartbeats, which are younger.
	Heartbeat bool
}

// IDs of the series.
const (
	LinkUp uint32 = iota + 1
	LinkConnects
	LinkLosses
	LinkDials
	LinkDropped
	Backlog
	BacklogOldest
	EventsDropped
	WritesRefused
	DataSize
	DataAvailable
	DataInodesFree
	RootSize
	RootAvailable
	MemorySize
	MemoryAvailable
	CPUSeconds
	CPUs
	Load
	EdgecoreCPU
	EdgecoreMemory
	PodsPending
	PodsRunning
	PodsSucceeded
	PodsFailed
	PodsNotRunning
	ContainerRestarts
	Operations
	CertificateEnd
	ClockOffset
	KubeletAlive
	RuntimeReady
	ConditionProblems
	BootTime
	StartTime
	StoreDamaged
)

// All lists the series in the order of their IDs.
func All() []Series {
	const node = "skerry_node_"
	gauge := func(id uint32, name, help string) Series {
		return Series{ID: id, Name: node + name, Help: help, PerUnit: 1}
	}
	counter := func(id uint32, name, help string) Series {
		return Series{ID: id, Name: node + name, Help: help, PerUnit: 1, Counter: true}
	}
	labelled := func(s Series, label, value string) Series {
		s.Label, s.Value = label, value
		return s
	}
	scaled := func(s Series, perUnit float64) Series {
		s.PerUnit = perUnit
		return s
	}
	heartbeat := func(s Series) Series {
		s.Heartbeat = true
		return s
	}
	// Sizes are in steps of 64 KiB: below that they change with each sample, and no alert needs it.
	const step = 1.0 / (64 << 10)
	size := func(id uint32, name, help, filesystem string) Series {
		return labelled(scaled(gauge(id, name, help), step), "filesystem", filesystem)
	}
	pods := func(id uint32, phase string) Series {
		return labelled(gauge(id, "pods", "Pods of the node by phase, as stored on the node."), "phase", phase)
	}
	const filesystemSize, filesystemAvailable = "Size of the filesystem of edgecore's data directory (data) and of / (root).", "Bytes of the filesystem available to unprivileged processes."
	return []Series{
		gauge(LinkUp, "link_up", "Whether the node had a link when it took the sample: 1 or 0."),
		counter(LinkConnects, "link_connects_total", "Sessions that the node opened, since edgecore started."),
		counter(LinkLosses, "link_losses_total", "Sessions that ended, since edgecore started."),
		counter(LinkDials, "link_dials_total", "Attempts to reach a cloudcore, since edgecore started."),
		counter(LinkDropped, "link_dropped_messages_total", "Messages for the cloud that could not be sent, since edgecore started."),
		heartbeat(gauge(Backlog, "backlog_writes", "Writes on the node that kube-apiserver has not accepted.")),
		heartbeat(gauge(BacklogOldest, "backlog_oldest_timestamp_seconds", "Time of the oldest write in the node's backlog, in Unix time; 0 if the backlog is empty.")),
		gauge(EventsDropped, "events_dropped", "Events dropped for newer ones: not yet reported to the cloud, or reported in the last hour (60 samples)."),
		counter(WritesRefused, "writes_refused_total", "Writes of the node that kube-apiserver rejected permanently, since edgecore started."),
		size(DataSize, "filesystem_size_bytes", filesystemSize, "data"),
		size(DataAvailable, "filesystem_available_bytes", filesystemAvailable, "data"),
		labelled(gauge(DataInodesFree, "filesystem_free_inodes", "Free inodes of that filesystem."), "filesystem", "data"),
		size(RootSize, "filesystem_size_bytes", filesystemSize, "root"),
		size(RootAvailable, "filesystem_available_bytes", filesystemAvailable, "root"),
		scaled(gauge(MemorySize, "memory_size_bytes", "Memory of the node."), step),
		scaled(gauge(MemoryAvailable, "memory_available_bytes", "Memory that is available without swapping (MemAvailable)."), step/16),
		scaled(counter(CPUSeconds, "cpu_seconds_total", "Processor time that was not idle, of all processors, since the node booted."), 10),
		gauge(CPUs, "cpus", "Processors of the node."),
		scaled(gauge(Load, "load1", "Load average over one minute."), 100),
		scaled(counter(EdgecoreCPU, "edgecore_cpu_seconds_total", "Processor time of edgecore with its kubelet."), 100),
		scaled(gauge(EdgecoreMemory, "edgecore_resident_memory_bytes", "Resident memory of edgecore with its kubelet."), step/4),
		pods(PodsPending, "Pending"), pods(PodsRunning, "Running"), pods(PodsSucceeded, "Succeeded"), pods(PodsFailed, "Failed"),
		gauge(PodsNotRunning, "pods_not_running", "Pods that should run and don't."),
		gauge(ContainerRestarts, "container_restarts", "Container restarts of the node's current pods."),
		gauge(Operations, "operations", "Operations on the node that have not ended."),
		heartbeat(gauge(CertificateEnd, "certificate_expiration_timestamp_seconds", "Expiry of the node's certificate, in Unix time.")),
		scaled(gauge(ClockOffset, "clock_offset_seconds", "Offset of the node's clock from cloudcore's when the link came up; positive if it was ahead."), 1000),
		heartbeat(gauge(KubeletAlive, "kubelet_alive", "Whether the kubelet renewed its Lease in time: 1 or 0.")),
		gauge(RuntimeReady, "container_runtime_ready", "Whether the container runtime is ready: 1 or 0."),
		gauge(ConditionProblems, "condition_problems", "Conditions of the Node that report a problem, as stored on the node."),
		gauge(BootTime, "boot_timestamp_seconds", "When the node booted, in Unix time."),
		gauge(StartTime, "edgecore_start_timestamp_seconds", "When edgecore started, in Unix time."),
		gauge(StoreDamaged, "store_damaged", "Whether edgecore found a damaged store at start and set it aside: 1 or 0."),
	}
}

// Sample is the values of one moment, by the IDs of their series and scaled.
type Sample struct {
	Unix   int64
	Values map[uint32]int64
}

// Set puts a value into the sample. A value that is not finite is left out.
func (s *Sample) Set(series Series, value float64) {
	if scaled := math.Round(value * series.PerUnit); math.Abs(scaled) < 1<<62 {
		s.Values[series.ID] = int64(scaled)
	}
}

// SameSeries reports whether both samples have values of the same series.
func (s Sample) SameSeries(other Sample) bool {
	if len(s.Values) != len(other.Values) {
		return false
	}
	for id := range s.Values {
		if _, ok := other.Values[id]; !ok {
			return false
		}
	}
	return true
}

// Pack makes a message of samples of the same series, the oldest first; there is at least one.
func Pack(stream, first uint64, samples []Sample) *topicpb.NodeMetrics {
	m := &topicpb.NodeMetrics{Stream: stream, First: first, Unix: samples[0].Unix}
	for i := range samples[1:] {
		m.Steps = append(m.Steps, samples[i+1].Unix-samples[i].Unix)
	}
	ids := make([]uint32, 0, len(samples[0].Values))
	for id := range samples[0].Values {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s := &topicpb.NodeMetricsSeries{Id: id, Value: samples[0].Values[id]}
		last := 0 // deltas up to the last that is not 0
		for i := range samples[1:] {
			delta := samples[i+1].Values[id] - samples[i].Values[id]
			s.Deltas = append(s.Deltas, delta)
			if delta != 0 {
				last = len(s.Deltas)
			}
		}
		s.Deltas = s.Deltas[:last]
		m.Series = append(m.Series, s)
	}
	return m
}

// Unpack reads a message. Its error names a bound that the message breaks.
func Unpack(m *topicpb.NodeMetrics) ([]Sample, error) {
	n := len(m.GetSteps()) + 1
	switch {
	case n > MaxSamples:
		return nil, fmt.Errorf("%d samples, the bound is %d", n, MaxSamples)
	case len(m.GetSeries()) > MaxSeries:
		return nil, fmt.Errorf("%d series, the bound is %d", len(m.GetSeries()), MaxSeries)
	case m.GetStream() == 0 || m.GetFirst() == 0 || m.GetFirst() > math.MaxUint64-MaxSamples:
		return nil, errors.New("the samples have no numbers")
	}
	samples := make([]Sample, n)
	at := m.GetUnix()
	for i := range samples {
		if i > 0 {
			at += m.GetSteps()[i-1]
		}
		if at < 0 || at > math.MaxInt32*4 { // some time after 2200
			return nil, fmt.Errorf("sample %d is of %d, in Unix seconds", i, at)
		}
		samples[i] = Sample{Unix: at, Values: make(map[uint32]int64, len(m.GetSeries()))}
	}
	for _, s := range m.GetSeries() {
		if len(s.GetDeltas()) >= n {
			return nil, fmt.Errorf("series %d has %d values for %d samples", s.GetId(), len(s.GetDeltas())+1, n)
		}
		if _, twice := samples[0].Values[s.GetId()]; twice {
			return nil, fmt.Errorf("series %d is there twice", s.GetId())
		}
		value := s.GetValue()
		for i := range samples {
			if i > 0 && i <= len(s.GetDeltas()) {
				value += s.GetDeltas()[i-1]
			}
			samples[i].Values[s.GetId()] = value
		}
	}
	return samples, nil
}
