package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Drain carries node operations out, once the node is drained.
type Drain struct {
	// Enable off: this device carries out no operation at all.
	Enable bool `json:"enable"`
	// Evict off: operations go ahead without a drain, which counts as not supported.
	Evict bool `json:"evict"`
	// Attempts is the number of attempts to drain, Interval the time between two of them. Timeout
	// bounds one attempt if the operation has no timeout.
	Attempts int             `json:"attempts"`
	Interval metav1.Duration `json:"interval"`
	Timeout  metav1.Duration `json:"timeout"`
	// ProceedAfter is how long an operation with `whenUnreachable: Proceed` waits for an API that
	// can't be reached.
	ProceedAfter metav1.Duration `json:"proceedAfter"`
	// EvictInterval is between two evictions of a pod that a PodDisruptionBudget holds;
	// RetryInterval after the API gave no answer.
	EvictInterval metav1.Duration `json:"evictInterval"`
	RetryInterval metav1.Duration `json:"retryInterval"`
	Hooks         Hooks           `json:"hooks"`
}

// Hooks are commands for /bin/sh, as root. An empty one means no hook: the operation is refused
// when requested.
type Hooks struct {
	// Timeout is after how long a hook is killed, with all that it started in the foreground.
	Timeout metav1.Duration `json:"timeout"`
	// Prefetch brings the image of an update to the device and checks it, before the node is
	// cordoned. Empty: the update hook does that.
	Prefetch string `json:"prefetch"`
	Reboot   string `json:"reboot"`
	Shutdown string `json:"shutdown"`
	Update   string `json:"update"`
}

// maxHook bounds a hook, in bytes: longer ones belong in a script of their own.
const maxHook = 4096

func (d *Drain) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d.Attempts < 1 || d.Attempts > 1000 {
		errs = append(errs, field.Invalid(at.Child("attempts"), d.Attempts, "must be 1 to 1000"))
	}
	between := func(name string, v metav1.Duration, least, most time.Duration) {
		if v.Duration < least || v.Duration > most {
			errs = append(errs, field.Invalid(at.Child(name), v.Duration.String(), "must be "+least.String()+" to "+most.String()))
		}
	}
	const day = 24 * time.Hour
	between("interval", d.Interval, time.Second, 7*day)
	between("timeout", d.Timeout, time.Second, 7*day)
	between("proceedAfter", d.ProceedAfter, time.Second, 365*day)
	between("evictInterval", d.EvictInterval, 100*time.Millisecond, time.Hour)
	between("retryInterval", d.RetryInterval, 100*time.Millisecond, time.Hour)
	if v := d.Hooks.Timeout; v.Duration < time.Second || v.Duration > 7*day {
		errs = append(errs, field.Invalid(at.Child("hooks", "timeout"), v.Duration.String(), "must be 1s to "+(7*day).String()))
	}
	for name, hook := range map[string]string{"reboot": d.Hooks.Reboot, "shutdown": d.Hooks.Shutdown, "update": d.Hooks.Update, "prefetch": d.Hooks.Prefetch} {
		if len(hook) > maxHook {
			errs = append(errs, field.TooLong(at.Child("hooks", name), "", maxHook))
		}
	}
	return errs
}
