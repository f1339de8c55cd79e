# A server that serves nothing: it writes down what it was given, and every signal that it gets, in the order in which they come.
#
#     perl probe.pl FOLDER [WORD...]
#
# One line per event goes to FOLDER/journal, fields parted by tabs: seconds of the monotonic clock, the pid, the generation,
# what happened, and more. Words say how it behaves: `die=2,3` (generations 2 and 3 end with 3 when they have said what they
# were given), `hold=1` (generation 1 ends, once told to, when the file FOLDER/go is there), `deaf=1` (it only writes signals
# down), `notify=1` (it tells NOTIFY_SOCKET that it is ready), `late=1` (the same, once FOLDER/ready is there), `spawn=1` (it has a
# grandchild whose own parent has ended, and which ends when FOLDER/go is there).
# `all` stands for every generation. Other words are written down.

use strict;
use warnings;
use Fcntl;
use POSIX ();
use Socket;
use Time::HiRes ();

# What only the kernel knows, before anything here changes it.
my %status = do {
    no warnings 'portable'; # 64 signals
    open my $file, '<', '/proc/self/status' or die "status: $!";
    map { /^(Sig(?:Blk|Ign)):\s*(\w+)/ ? ($1, hex $2) : () } <$file>;
};

my $folder = shift @ARGV;
my $generation = defined $ENV{SERVER_STARTER_GENERATION} ? $ENV{SERVER_STARTER_GENERATION} : '-';
sysopen my $journal, "$folder/journal", O_WRONLY | O_APPEND | O_CREAT or die "$folder/journal: $!";

sub note {
    my $now = sprintf '%.6f', Time::HiRes::clock_gettime(Time::HiRes::CLOCK_MONOTONIC());
    my $line = join("\t", $now, $$, $generation, @_) . "\n";
    syswrite $journal, $line or die "journal: $!";
}

my %behaviour;
my @words;
for (@ARGV) {
    if (/^(die|hold|deaf|notify|late|spawn)=(.*)$/) { $behaviour{$1} = ",$2," }
    else { push @words, $_ }
}

sub behaves {
    my $list = $behaviour{$_[0]} || '';
    return $list =~ /,(?:all|\Q$generation\E),/;
}

# Every signal that can be caught is written down. Those that ask for an end are obeyed.
my $over;
my @asked = qw(HUP INT QUIT USR1 USR2 ALRM TERM WINCH PIPE CONT);
for my $name (@asked) {
    $SIG{$name} = sub {
        note('signal', $name);
        $over = 1 if $name =~ /^(?:INT|QUIT|USR1|TERM)$/ && !behaves('deaf');
    };
}
# They come only where this program waits for them.
my $none = POSIX::SigSet->new;
my $all = POSIX::SigSet->new(map { POSIX->can("SIG$_")->() } grep { $_ ne 'WINCH' } @asked);
POSIX::sigprocmask(POSIX::SIG_BLOCK(), $all) or die "sigprocmask: $!";

# What a descriptor is.
my @kept;

sub facts {
    my ($fd) = @_;
    open my $socket, '<&=', $fd or return "not open: $!";
    my $at = getsockname $socket or return 'not a socket';
    my $family = sockaddr_family($at);
    my $address =
        $family == AF_INET ? do { my ($port, $ip) = unpack_sockaddr_in($at); inet_ntoa($ip) . ":$port" }
      : $family == AF_INET6 ? do { my ($port, $ip) = unpack_sockaddr_in6($at); '[' . Socket::inet_ntop(AF_INET6, $ip) . "]:$port" }
      : do { (my $path = substr $at, 2) =~ s/^\0/@/; $path =~ s/\0.*//s; $path };
    my $option = sub {
        my $value = getsockopt $socket, $_[0], $_[1];
        return defined $value ? unpack('i', $value) : '-';
    };
    my @facts = ($address);
    push @facts, 'listens' if $option->(SOL_SOCKET, SO_ACCEPTCONN);
    push @facts, 'datagrams' if $option->(SOL_SOCKET, SO_TYPE) == SOCK_DGRAM;
    push @facts, 'reuse' if $family != AF_UNIX && $option->(SOL_SOCKET, SO_REUSEADDR);
    push @facts, 'v6only' if $family == AF_INET6 && $option->(Socket::IPPROTO_IPV6(), Socket::IPV6_V6ONLY());
    push @facts, 'nonblocking' if fcntl($socket, F_GETFL, 0) & O_NONBLOCK;
    # struct tcp_info of a listening socket: tcpi_sacked is the length that its queue may have.
    if ($family != AF_UNIX && $option->(SOL_SOCKET, SO_ACCEPTCONN)) {
        my $info = getsockopt $socket, Socket::IPPROTO_TCP(), 11;
        push @facts, 'backlog ' . (unpack 'x8 L6', $info)[5];
    }
    if ($family == AF_UNIX && $address =~ m{^/} && $address !~ /^@/) {
        push @facts, sprintf 'mode %o', (stat $address)[2] & 07777 if -S $address;
    }
    push @kept, $socket; # Perl would close the descriptor with the handle.
    return join ' ', @facts;
}

my %known = map { $_ => 1 } 0 .. 2, fileno $journal;
my $ports = $ENV{SERVER_STARTER_PORT};
note('ports', defined $ports ? 'set' : 'not set');
for (split /;/, defined $ports ? $ports : '') {
    my ($name, $fd) = /^(.*)=(\d+)$/ or do { note('port', $_, 'not NAME=FD'); next };
    $known{$fd} = 1;
    note('port', $name, $fd, facts($fd));
}
if (defined(my $count = $ENV{LISTEN_FDS})) {
    note('listen', $count, defined $ENV{LISTEN_PID} && $ENV{LISTEN_PID} eq $$ ? 'mine' : 'not mine',
        defined $ENV{LISTEN_FDNAMES} ? $ENV{LISTEN_FDNAMES} : '-');
    for my $fd (3 .. 2 + $count) {
        $known{$fd} = 1;
        note('listen-fd', $fd, facts($fd));
    }
}
for my $fd (sort { $a <=> $b } map { m{/(\d+)$} } glob '/proc/self/fd/*') {
    my $what = readlink "/proc/self/fd/$fd";
    note('left-open', $what) if defined $what && !$known{$fd};
}
note('cwd', POSIX::getcwd());
note('stdin', readlink '/proc/self/fd/0');
note('parent', getppid(), getpgrp() == getpgrp(getppid()) ? 'in its group' : 'in a group of its own');
note('blocked', sprintf '%x', $status{SigBlk});
note('ignored', sprintf '%x', $status{SigIgn});
note('umask', sprintf '%o', umask);
note('word', $_) for @words;
note('env', "$_=$ENV{$_}") for sort grep { !/^(?:SERVER_STARTER_(?:PORT|GENERATION)|LISTEN_(?:FDS|PID|FDNAMES))$/ } keys %ENV;
$| = 1;
print "out of $generation\n";
print STDERR "err of $generation\n";

if (behaves('die')) {
    note('died');
    exit 3;
}
if (behaves('spawn')) {
    my $pid = fork;
    die "fork: $!" unless defined $pid;
    if ($pid == 0) {
        # A process in between ends at once: this one's parent is then whoever takes in orphans.
        my $second = fork;
        POSIX::_exit(0) if $second;
        note('grandchild');
        select undef, undef, undef, 0.01 until -e "$folder/go";
        note('grandchild ends', getppid());
        POSIX::_exit(0);
    }
    waitpid $pid, 0;
}
note('started');
select undef, undef, undef, 0.01 while behaves('late') && !-e "$folder/ready";
if ((behaves('notify') || behaves('late')) && $ENV{NOTIFY_SOCKET}) {
    (my $path = $ENV{NOTIFY_SOCKET}) =~ s/^@/\0/;
    socket my $socket, AF_UNIX, SOCK_DGRAM, 0 or die "socket: $!";
    defined send $socket, "READY=1\n", 0, pack_sockaddr_un($path) or die "$ENV{NOTIFY_SOCKET}: $!";
    note('told');
}
POSIX::sigsuspend($none) until $over;
if (behaves('hold')) {
    # What else comes meanwhile is written down too.
    POSIX::sigprocmask(POSIX::SIG_SETMASK(), $none);
    select undef, undef, undef, 0.01 until -e "$folder/go";
}
note('ended');
exit 0;
