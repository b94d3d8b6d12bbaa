package fence

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MachineAnnotation of a node's Lease is the Machine that the node's sessions are of.
const MachineAnnotation = "skerry.io/machine"

// Machine is the hardware that a session comes from, and the identity that it comes with.
type Machine struct {
	ID     string    // a digest of what the firmware calls itself; "": unknown
	Key    string    // a digest of the certificate's public key
	Issued time.Time // of the certificate
}

// clockSkew is how far the clocks of the signer and of a replica may differ.
const clockSkew = time.Hour

// maxMachine bounds the identifier that a device reports, in bytes.
const maxMachine = 16

// MachineOf returns the machine of a session; a reported identifier that is none is unknown.
func MachineOf(id string, cert *x509.Certificate) Machine {
	if len(id) > maxMachine || strings.ContainsFunc(id, func(r rune) bool { return !('0' <= r && r <= '9' || 'a' <= r && r <= 'f') }) {
		id = ""
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return Machine{ID: id, Key: hex.EncodeToString(sum[:8]), Issued: cert.NotBefore.UTC().Truncate(time.Second)}
}

// Annotation is the annotation's value; "" where the machine is unknown.
func (m Machine) Annotation() string {
	if m.ID == "" {
		return ""
	}
	return m.ID + " " + m.Key + " " + strconv.FormatInt(m.Issued.Unix(), 10)
}

// MachineIn reads the annotation; an unknown Machine where it is missing or invalid.
func MachineIn(annotations map[string]string) Machine {
	part := strings.Fields(annotations[MachineAnnotation])
	if len(part) != 3 {
		return Machine{}
	}
	issued, err := strconv.ParseInt(part[2], 10, 64)
	if err != nil {
		return Machine{}
	}
	return Machine{ID: part[0], Key: part[1], Issued: time.Unix(issued, 0).UTC()}
}

// Clone is the error for a session of a machine whose identity another machine has.
type Clone struct {
	Have, Ours string
}

// Error names both. It is shown on the device that was refused, and short: a websocket's close has
// room for 123 bytes.
func (c *Clone) Error() string {
	return fmt.Sprintf("clone: machine %s has this identity, and this is machine %s: see docs/maintenance.md#a-clone", c.Have, c.Ours)
}

// SameMachine returns a Clone where the machine that has a node's identity is known to be another
// than that of a session. A device that was joined again, on whatever machine, has another key and
// a certificate that is younger. A machine whose certificate was issued after now does not count: a
// device with its certificate at kube-apiserver can write the annotation, and would refuse every
// later join.
func SameMachine(now time.Time, have, ours Machine) error {
	if have.Issued.After(now.Add(clockSkew)) {
		return nil
	}
	if have.ID == "" || ours.ID == "" || have.ID == ours.ID || have.Key != ours.Key && ours.Issued.After(have.Issued) {
		return nil
	}
	return &Clone{Have: have.ID, Ours: ours.ID}
}
