// Package machineid tells the hardware of this device from other hardware.
//
// It owns the names that firmware gives to a machine, and reads them. It refuses names that many
// machines share, and whatever a copy of the disk takes along (/etc/machine-id) or a plug can
// change (addresses of network interfaces). Its functions keep no state.
package machineid

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

// sources are the files with a name, the first that has one counts: the system's UUID by SMBIOS,
// and the serial number of boards with a device tree.
func sources() []string {
	return []string{"sys/class/dmi/id/product_uuid", "sys/firmware/devicetree/base/serial-number"}
}

// shared are names that vendors leave on every machine of a kind.
func shared() []string {
	return []string{"03000200-0400-0500-0006-000700080009", "default string", "to be filled by o.e.m.", "not settable", "not specified", "not present", "none", "unknown", "123456789", "0123456789"}
}

// Read returns a digest of the machine's name below root; "" if the firmware has none.
func Read(root string) string {
	for _, path := range sources() {
		raw, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue
		}
		if id := Digest(string(raw)); id != "" {
			return id
		}
	}
	return ""
}

// Digest returns a digest of a name; "" if the name can't tell machines apart.
func Digest(name string) string {
	name = strings.ToLower(strings.Trim(name, " \t\r\n\x00"))
	for _, s := range shared() {
		if name == s {
			return ""
		}
	}
	if strings.Trim(name, "0-") == "" || strings.Trim(name, "f-") == "" || len(name) < 4 {
		return ""
	}
	sum := sha256.Sum256([]byte("skerry machine\x00" + name))
	return hex.EncodeToString(sum[:8])
}
