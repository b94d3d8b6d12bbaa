package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
)

// VirtualIPName is the name of the VirtualIP of an address: 192.168.10.234, or 2002-0002-0002-0000-0000-0000-0000-0001; with the network's name behind a dot
// where the pool names one. Every address has one name, so that making the object is the claim.
func VirtualIPName(address netip.Addr, network string) string {
	name := address.StringExpanded()
	if address.Is6() {
		name = strings.ReplaceAll(name, ":", "-")
	}
	if network != "" {
		name += "." + network
	}
	return name
}

// VIPNodeLabel is the label of the VirtualIPs that concern a node. A node's name may be longer than a label's, so it is a digest.
func VIPNodeLabel(node string) string {
	sum := sha256.Sum256([]byte(node))
	return VIPNodeLabelPrefix + hex.EncodeToString(sum[:10])
}
