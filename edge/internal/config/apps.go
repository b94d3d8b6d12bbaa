package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Apps reports the applications (EdgeApps) of this device.
type Apps struct {
	Enable bool `json:"enable"`
	// HaltingAfter is how long an application's state may be Unknown before it counts as Halting.
	HaltingAfter metav1.Duration `json:"haltingAfter"`
	// SilentAfter is how long without a link nothing is reported any more.
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
