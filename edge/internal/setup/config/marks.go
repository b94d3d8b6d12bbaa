package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Marks marks connections from outside to exposed Services.
type Marks struct {
	Enable bool `json:"enable"`
	// ClusterStatusPort is the TCP port of the cluster's status server on this device, whose
	// connections have a mark of their own; 0: no port.
	ClusterStatusPort int `json:"clusterStatusPort"`
}

func (m *Marks) validate(at *field.Path) field.ErrorList {
	if n := m.ClusterStatusPort; n < 0 || n > 65535 {
		return field.ErrorList{field.Invalid(at.Child("clusterStatusPort"), n, "must be a port, 1 to 65535, or 0 for none")}
	}
	return nil
}

// Passthrough gives applications network ports of the device, by way of Multus.
type Passthrough struct {
	Enable bool `json:"enable"`
	// Ports are the interfaces that pods may take.
	Ports []string `json:"ports"`
}

// Console offers consoles of virtual machines on the loopback interface, when they are asked for.
type Console struct {
	Enable bool `json:"enable"`
	// FirstPort is the lowest of ten ports.
	FirstPort int `json:"firstPort"`
	// Limit is the maximum time of a console, and the default of requests.
	Limit metav1.Duration `json:"limit"`
}

func (c *Console) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := c.FirstPort; n < 1024 || n > 65526 {
		errs = append(errs, field.Invalid(at.Child("firstPort"), n, "must be a port, 1024 to 65526: it and the nine behind it are used"))
	}
	if d := c.Limit.Duration; d < time.Minute || d > 8*time.Hour {
		errs = append(errs, field.Invalid(at.Child("limit"), d.String(), "must be 1m to 8h"))
	}
	return errs
}
