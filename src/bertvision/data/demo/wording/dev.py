"""Sentence forms and question templates of the demo set's dev part (grammar: see `forms.py`)."""

__all__ = ["DEV"]

DEV = """
* same: ; moreover, / ; what is more,
* other: , whereas / , but
* intro: Visitors to the region hear of {X} as well as of {Y} / A guide to {P} lists {X} and {Y}
* intro: {X} is sometimes mistaken for {Y} / Children at school learn about {P} such as {X} and {Y}
* aside: {person} has given a talk on {S} at the {org} / A film on {S} by {person} came out in {year}
* aside: {person} of {place} collects postcards of {S} / There is a report of {year} on {S} by the {org}
* aside: In a letter of {year} {person} calls {S} remarkable / {person} tells a story of {S} to guests from {place}
* aside: {person} and {person} met through their love of {S}

# expedition
leader > {A} headed {S} / {S} travelled under the orders of {A}
leader ? Who was at the head of {S}? / Who was the commander of {S}?
doctor > medical care during {S} was the task of {A} / {A} served {S} as physician
doctor ? Which physician accompanied {S}? / Who took care of the patients on {S}?
year > the men of {S} said goodbye in {A} / {S} started its journey in {A}
year ? When did {S} begin its journey? / Which year did {S} leave in?
goal > {S} made its way to {A} / {A} was where {S} ended up
goal ? To which place did {S} travel? / What place was reached by {S}?
funder > {S} had the financial backing of the {A} / the {A} financed {S}
funder ? Who funded {S}? / Which sponsor supported {S}?
days > {S} was on its way for {A} / the travellers of {S} were gone for {A}
days ? How many days did {S} take? / What was the duration of {S}?

# bridge
designer > the drawings for {S} were prepared by {A} / it was {A} who conceived {S}
designer ? Who drew {S}? / Who came up with the design of {S}?
opener > {A} unveiled {S} as guest of honour / the guest who inaugurated {S} was {A}
opener ? Who was the guest of honour when {S} opened? / Who performed the inauguration of {S}?
river > below {S} runs the {A} / {S} carries the road over the {A}
river ? What river is beneath {S}? / Which stream does {S} carry people over?
length > the span of {S} is {A} / {S} stretches for {A}
length ? How far does {S} stretch? / How many metres does {S} measure?
year > the builders of {S} were done in {A} / {S} has stood since {A}
year ? Since when has {S} been standing? / What is the year in which {S} was finished?
material > {S} consists of {A} / the builders of {S} chose {A}
material ? What does {S} consist of? / Of what material is {S}?

# company
founder > {A} laid the ground for {S} / {S} was the idea of {A}
founder ? Who created {S}? / Who is the founder of {S}?
manager > at the top of {S} there is {A} nowadays / the chief executive of {S} is {A}
manager ? Who is the boss of {S} at present? / Who leads {S} nowadays?
town > one finds {S} in {A} / {A} is where {S} resides
town ? In what town is {S} located? / Where is the seat of {S}?
product > {S} turns out {A} / {A} are the speciality of {S}
product ? What is the product of {S}? / What kind of goods does {S} make?
workers > {S} gives work to {A} men and women / on the payroll of {S} are {A} names
workers ? What is the number of workers at {S}? / How many persons are employed by {S}?
year > {S} began trading in {A} / the founding year of {S} is {A}
year ? What year was {S} set up? / When did {S} start to do business?

# painting
painter > the brush behind {S} was that of {A} / {A} created {S}
painter ? By which painter is {S}? / Who is the artist of {S}?
buyer > {S} went to {A} at an auction / {A} purchased {S} for a private room
buyer ? Who obtained {S} at auction? / To whom was {S} sold?
gallery > the present home of {S} is the {A} / {S} is exhibited by the {A}
gallery ? Where can {S} be viewed? / What is the name of the house that exhibits {S}?
year > {S} was completed on canvas in {A} / experts date {S} to {A}
year ? What date does {S} have? / When was {S} finished?
price > {S} brought {A} / a bid of {A} secured {S}
price ? What amount was paid for {S}? / How high was the bid for {S}?
sitter > in {S} we look at {A} / {S} is a likeness of {A}
sitter ? Who can be seen in {S}? / Of whom is {S} a likeness?

# comet
finder > {A} noticed {S} before anyone else / the discovery of {S} is owed to {A}
finder ? Who made the discovery of {S}? / Who noticed {S} first?
orbit > the course of {S} was determined by {A} / {A} did the sums that predict {S}
orbit ? Who determined the course of {S}? / Which mathematician predicted {S}?
site > the telescope that caught {S} stood in {A} / observers in {A} were the first to report {S}
site ? In which town was {S} reported? / Where did observers catch sight of {S}?
period > between two visits of {S} lie {A} / {S} is back after {A}
period ? What time lies between two visits of {S}? / After how many years is {S} back?
year > people saw {S} in {A} / {S} came close in {A}
year ? When could {S} be seen? / What was the year of the visit of {S}?
colour > {S} glowed {A} / to the eye {S} is {A}
colour ? Which colour did {S} have? / How does {S} look to the eye?

# dish
inventor > {A} came up with {S} / we owe {S} to {A}
inventor ? Who had the idea for {S}? / Who is the inventor of {S}?
writer > {A} noted the recipe for {S} / {S} is described in the kitchen book of {A}
writer ? Who noted how {S} is made? / In whose book is {S} described?
town > {S} is a speciality of {A} / {S} was born in the kitchens of {A}
town ? Which place has {S} as its speciality? / Where was {S} first eaten?
filling > {S} is prepared with {A} / without {A} there is no {S}
filling ? What is needed for {S}? / Which ingredient is in {S}?
time > {S} stays in the oven for {A} / {S} has to simmer for {A}
time ? How long must {S} be on the stove? / What is the cooking time of {S}?

# club
captain > {A} wears the armband of {S} / on the field {S} follows {A}
captain ? Who has the armband of {S}? / Who is the leader of {S} on the field?
coach > {A} decides who plays for {S} / {S} trains under {A}
coach ? Who gives {S} its training? / Under which coach does {S} work?
ground > {S} welcomes its rivals in {A} / {A} is home to {S}
ground ? In which place does {S} meet its rivals? / Where is {S} at home?
colour > the players of {S} are dressed in {A} / {S} has always worn {A}
colour ? Which colour are the shirts of {S}? / How are the players of {S} dressed?
year > {S} was called into life in {A} / the founding of {S} was in {A}
year ? When was {S} called into life? / What is the founding year of {S}?
crowd > the matches of {S} bring {A} fans / {A} supporters come to {S}
crowd ? How many fans does {S} attract? / What number of supporters turn up for {S}?

# instrument
maker > {S} came from the hands of {A} / {A} is named as the maker of {S}
maker ? By whom was {S} built? / From whose hands did {S} come?
player > on stage {S} is in the hands of {A} / the soloist with {S} is {A}
player ? Which soloist performs with {S}? / Who can be heard on {S}?
wood > {S} was carved out of {A} / {S} owes its sound to {A}
wood ? Out of what was {S} carved? / What material does {S} consist of?
town > {S} has its origin in {A} / the workshop of {S} was in {A}
town ? Where does {S} have its origin? / Which town was {S} made in?
year > {S} was ready in {A} / a note inside {S} says {A}
year ? What year was {S} finished? / How old is the date in {S}?
price > for {S} a dealer asked {A} / {S} was valued at {A}
price ? How much money was asked for {S}? / At what price was {S} valued?

# island
explorer > {A} found {S} by chance / the first visitor of {S} was {A}
explorer ? By whom was {S} discovered? / Who was the first person to reach {S}?
owner > {S} is in the possession of {A} / the landlord of {S} is {A}
owner ? Who possesses {S}? / Who is the proprietor of {S}?
harbour > ships on the way to {S} tie up in {A} / the port of {S} goes by the name of {A}
harbour ? Where do ships arrive at {S}? / What is the name of the port of {S}?
people > {S} is home to {A} souls / a census on {S} counted {A} residents
people ? What is the number of residents of {S}? / How many souls are there on {S}?
animal > on the shores of {S} one meets {A} / the wild {A} of {S} draw tourists
animal ? What kind of animal is met on {S}? / Which creatures are found on {S}?

# law
author > {S} came from the pen of {A} / it was {A} who suggested {S}
author ? Who suggested {S}? / From whose pen is {S}?
enemy > {A} tried to stop {S} / {S} met with resistance from {A}
enemy ? Who tried to prevent {S}? / Who resisted {S}?
year > parliament adopted {S} in {A} / {S} took effect in {A}
year ? What year was {S} adopted? / When did {S} take effect?
fine > breaking {S} costs {A} / {S} threatens offenders with {A}
fine ? What does it cost to break {S}? / What sum do offenders pay under {S}?
votes > {S} found the support of {A} deputies / {A} hands went up for {S}
votes ? How many deputies supported {S}? / What number of votes went to {S}?

# battle
victor > at the end of {S} {A} was triumphant / the winner of {S} was {A}
victor ? Who was the winner of {S}? / Who triumphed at {S}?
loser > {A} had to flee after {S} / in {S} luck deserted {A}
loser ? Which commander was the loser of {S}? / Who fled after {S}?
year > {A} was the year of {S} / the armies met for {S} in {A}
year ? When did {S} take place? / In which year did armies meet for {S}?
dead > {S} left {A} dead / after {S} {A} men were buried
dead ? What number of men fell in {S}? / How many were left dead by {S}?
place > {S} was decided on the hills of {A} / the scene of {S} was {A}
place ? What was the scene of {S}? / Where did the armies of {S} meet?

# theatre
architect > the building of {S} was devised by {A} / {A} made the plans for {S}
architect ? Who made the building plans of {S}? / By which architect is {S}?
director > the artistic head of {S} is {A} / {A} is responsible for the stage of {S}
director ? Who is responsible for {S}? / Who is the artistic leader of {S}?
seats > an evening at {S} is for {A} people at most / {S} sells {A} tickets a night
seats ? How many visitors can {S} take? / How big is the audience of {S}?
town > {S} is a landmark of {A} / the address of {S} is in {A}
town ? In what place is {S} found? / Which town has {S}?
year > the curtain of {S} first rose in {A} / {S} was inaugurated in {A}
year ? What year was {S} inaugurated? / When was the first night of {S}?
cost > {S} was built for {A} / the town spent {A} on {S}
cost ? How dear was the building of {S}? / What amount was spent on {S}?

# ship
captain > {A} was master of {S} / the crew of {S} obeyed {A}
captain ? Who was the master of {S}? / Whom did the crew of {S} obey?
owner > {S} was the property of {A} / {A} had paid for {S} and kept it
owner ? Whose property was {S}? / Who was the owner of {S}?
port > {S} set sail at {A} / the harbour that {S} called home was {A}
port ? At which harbour did {S} set sail? / Where was {S} at home?
cargo > the hold of {S} was filled with {A} / {S} traded in {A}
cargo ? What was in the hold of {S}? / What was transported by {S}?
year > {S} went down in {A} / a storm of {A} ended {S}
year ? What was the year of the loss of {S}? / When was {S} wrecked?

# newspaper
editor > {A} decides what goes into {S} / the desk of the chief at {S} is that of {A}
editor ? Who is chief editor of {S}? / Who decides on the articles of {S}?
owner > {S} earns its money for {A} / the publisher behind {S} is {A}
owner ? Which publisher owns {S}? / Whose property is {S}?
town > the presses of {S} stand in {A} / {S} is made in {A}
town ? Where are the presses of {S}? / Which town does {S} come from?
copies > {S} goes to {A} homes / {S} reaches {A} households
copies ? How many homes get {S}? / How many households read {S}?
year > {S} goes back to {A} / the first issue of {S} is from {A}
year ? When did the first issue of {S} come out? / What year does {S} go back to?
"""
