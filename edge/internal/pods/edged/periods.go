package edged

import (
	"slices"
	"time"

	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// A Period is how long a shutdown of the device waits for the pods of a priority and above, up to
// the next Period's.
type Period struct {
	Priority int32
	Length   time.Duration
}

// takePeriods takes them out of a configuration, so that the kubelet does not get them: at a
// shutdown it would end pods permanently, while edgecore ends their containers
// (docs/dev/decisions/0090-a-shutdown-ends-containers.md). Their meaning is that of the kubelet's
// own nodeshutdown package.
func takePeriods(kc *kubeletconfig.KubeletConfiguration) []Period {
	all, critical, byPriority := kc.ShutdownGracePeriod.Duration, kc.ShutdownGracePeriodCriticalPods.Duration, kc.ShutdownGracePeriodByPodPriority
	kc.ShutdownGracePeriod.Duration, kc.ShutdownGracePeriodCriticalPods.Duration, kc.ShutdownGracePeriodByPodPriority = 0, 0, nil
	gate := func(name string) bool {
		on, set := kc.FeatureGates[name]
		return on || !set
	}
	if !gate(string(features.GracefulNodeShutdown)) {
		return nil
	}
	var periods []Period
	if gate(string(features.GracefulNodeShutdownBasedOnPodPriority)) {
		for _, p := range byPriority {
			periods = append(periods, Period{p.Priority, time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
		}
		slices.SortStableFunc(periods, func(x, y Period) int { return int(x.Priority) - int(y.Priority) })
	}
	if len(periods) == 0 && all > 0 {
		periods = []Period{{scheduling.DefaultPriorityWhenNoDefaultClassExists, all - critical}, {scheduling.SystemCriticalPriority, critical}}
	}
	return periods
}
