// Package nmstate has documents of nmstate's schema as values: how they are read, compared, laid over each other and taken
// apart. It knows no network and no Kubernetes; all functions are pure and safe for concurrent use, and none changes what it
// is given.
//
// Three relations matter. Overlay(base, over) is base with over on top, attribute by attribute. Subtract(s, part) is
// s without the content of part. Diff(desired, current) is what current lacks to be as desired. Parts that desired
// does not name do not matter, nor do text forms (MAC case, IPv6), nor parts that come and go by themselves (link-
// local addresses, lifetimes).
//
// An interface is known by its name; an OVS bridge may share its name with its internal interface, so ovs-bridge has names
// of its own.
package nmstate
