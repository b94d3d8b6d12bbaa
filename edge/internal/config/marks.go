package config

import "k8s.io/apimachinery/pkg/util/validation/field"

// Marks marks connections from outside to what the cluster exposes.
type Marks struct {
	Enable bool `json:"enable"`
	// ClusterStatusPort is the TCP port of the cluster's status server on this device, whose connections have a mark of their own; 0 for none.
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
}
