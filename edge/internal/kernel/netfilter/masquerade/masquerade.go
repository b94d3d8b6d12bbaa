// Package masquerade gives packets of this device's pods the device's own address where they leave
// the site, and packets of the device itself to pods of others the address that those can answer.
//
// It owns the nftables tables "skerry-pods" of the families ip and ip6, whole, and touches no
// other: by these names a fresh process recognises them. A family without ranges has no table. A
// table is replaced in one transaction, and stays when the process ends. Apply is called by one
// goroutine at a time.
package masquerade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
)

const table = "skerry-pods"

// Rules select the masqueraded packets: those from Pods, except those to Inside; and the device's
// own to Others, the pods of other devices. A connection to a ClusterIP has the source address of
// the ClusterIP's route, mostly the uplink's, to which no host on the LAN has a route. Neighbours
// are the other devices themselves, which a ClusterIP reaches if a pod has its device's network:
// packets translated to them get the address of the outgoing route too. Strays are pods of this
// device that no other device has a route to: their packets have the device's address wherever they
// leave the device.
type Rules struct {
	Pods   []netip.Prefix
	Inside []netip.Prefix
	Others []netip.Prefix
	// Neighbours are single addresses.
	Neighbours []netip.Prefix
	Strays     []netip.Prefix
}

// Driver makes the kernel masquerade.
type Driver struct{ applied map[string]string }

// New returns a Driver. It needs the program nft.
func New() *Driver { return &Driver{applied: map[string]string{}} }

// Apply makes the kernel masquerade exactly this.
func (d *Driver) Apply(ctx context.Context, want Rules) error {
	tables, err := nft(ctx, "", "list", "tables")
	switch {
	case errors.Is(err, exec.ErrNotFound) && len(want.Pods) == 0:
		return nil // without the program there never was a table
	case err != nil:
		return err
	}
	lines := strings.Split(tables, "\n")
	var errs []error
	for _, family := range []string{"ip", "ip6"} {
		text := render(family, want)
		there := slices.Contains(lines, "table "+family+" "+table)
		if text == "" {
			if there {
				_, err := nft(ctx, "", "delete", "table", family, table)
				errs = append(errs, err)
			}
			delete(d.applied, family)
			continue
		}
		if there && d.applied[family] == text {
			continue
		}
		if _, err := nft(ctx, text, "-f", "-"); err != nil {
			errs = append(errs, err)
			continue
		}
		d.applied[family] = text
	}
	return errors.Join(errs...)
}

// render is a family's table as nft(8) reads it; "" for no table. The first two lines remove an
// existing table, and succeed without one.
func render(family string, want Rules) string {
	of := func(all []netip.Prefix) (texts []string) {
		for _, p := range all {
			if p.Addr().Is4() == (family == "ip") {
				texts = append(texts, p.Masked().String())
			}
		}
		slices.Sort(texts)
		return slices.Compact(texts)
	}
	pods, inside, others := of(want.Pods), of(slices.Concat(want.Pods, want.Inside)), of(want.Others)
	if len(pods) == 0 {
		return ""
	}
	kind := map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[family]
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s\ndelete table %s %s\n", family, table, family, table)
	fmt.Fprintf(&b, "table %s %s {\n\tset inside {\n\t\ttype %s\n\t\tflags interval\n\t\tauto-merge\n\t\telements = { %s }\n\t}\n", family, table, kind, strings.Join(inside, ", "))
	fmt.Fprintf(&b, "\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t\t%s saddr { %s } %s daddr != @inside masquerade\n",
		family, strings.Join(pods, ", "), family)
	if strays := of(want.Strays); len(strays) > 0 {
		fmt.Fprintf(&b, "\t\t%s saddr { %s } %s daddr != { %s } masquerade\n", family, strings.Join(strays, ", "), family, strings.Join(append(pods, strays...), ", "))
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, "\t\tfib saddr type local %s daddr { %s } masquerade\n", family, strings.Join(others, ", "))
	}
	if neighbours := of(want.Neighbours); len(neighbours) > 0 {
		fmt.Fprintf(&b, "\t\tfib saddr type local ct status dnat %s daddr { %s } masquerade\n", family, strings.Join(neighbours, ", "))
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

func nft(ctx context.Context, input string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "nft", args...)
	c.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}
