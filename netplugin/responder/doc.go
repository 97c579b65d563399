// Package responder answers packets to addresses that no pod has, as other networks do: a TCP segment with a reset
// (RFC 9293), anything else with an ICMP error (RFC 792, RFC 4443).
//
// Answer is a function over bytes. Responder is the thin edge around it: a bounded queue, a rate limit and counters
// (docs/decisions/029-absent-pod-responses.md).
package responder
